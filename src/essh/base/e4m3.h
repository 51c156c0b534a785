#pragma once
#include <bit>
#include <cstdint>

namespace essh {

// E4M3: a sign, four bits of exponent with bias 7, three of mantissa; maximum 448, no infinity, NaN is 0x7f.

// Rounds to nearest even; 448 beyond.
constexpr std::uint8_t to_e4m3(float value) {
  const auto word = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint8_t>(word >> 24 & 0x80u);
  const std::uint32_t bits = word & 0x7fffffffu;
  if (bits > 0x7f800000u) return static_cast<std::uint8_t>(sign | 0x7fu);
  const auto magnitude = std::bit_cast<float>(bits);
  if (magnitude >= 464) return static_cast<std::uint8_t>(sign | 0x7eu);
  // Below the smallest normal number: multiples of 2^-9, which the sum has as its last bits.
  if (magnitude < 0x1p-6f)
    return static_cast<std::uint8_t>(sign | (std::bit_cast<std::uint32_t>(magnitude + 0x1p14f) & 0xfu));
  const auto rounded = bits + 0x7ffffu + (bits >> 20 & 1u);
  return static_cast<std::uint8_t>(sign | ((rounded >> 20) - (120u << 3)));
}

constexpr float from_e4m3(std::uint8_t code) {
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x80u) << 24, bits = code & 0x7fu;
  if (bits == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
  // With exponent and mantissa at a float's bits the number is 2^120 times too small.
  const float magnitude = std::bit_cast<float>(bits << 20) * 0x1p120f;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
}

// The scale of numbers up to `largest` in E4M3: rounded up to bf16, so that none exceeds 448.
constexpr std::uint16_t e4m3_scale_bits(float largest) {
  const auto word = std::bit_cast<std::uint32_t>(largest / 448.0f);
  return static_cast<std::uint16_t>((word >> 16) + ((word & 0xffffu) != 0 ? 1u : 0u));
}

}  // namespace essh
