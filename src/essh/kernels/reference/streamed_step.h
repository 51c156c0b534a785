#pragma once
#include <cstring>

#include "essh/base/e4m3.h"
#include "essh/kernels/streamed_step.h"

namespace essh::reference {

// The number of a code; of Q4 without its offset of 8.
inline float code_value(TileFormat format, unsigned code) {
  if (format == TileFormat::Q4) return static_cast<float>(static_cast<int>(code) - 8);
  if (format == TileFormat::Q8) return static_cast<float>(static_cast<std::int8_t>(code));
  return from_e4m3(static_cast<std::uint8_t>(code));
}

// Element (r, c) of a quantised matrix as products use it: scale * code, exact in float, rounded to bf16 once.
inline BFloat16 coded_weight(TileFormat format, const CodedMatrix& matrix, Index r, Index c) {
  const auto byte = [&](Index i) { return std::to_integer<unsigned>(matrix.codes[r * matrix.code_stride + i]); };
  const unsigned code = format == TileFormat::Q4 ? byte(c / 2) >> (c % 2 * 4) & 15u : byte(c);
  const auto scale = static_cast<float>(matrix.scales[r * matrix.scale_stride + c / kTileGroup]);
  return BFloat16(scale * code_value(format, code));
}

// Element (r, c) of a packed tile of bf16 or of codes.
inline BFloat16 tile_weight(TileFormat format, const std::byte* tile, int r, int c) {
  const auto word = [&](int index) {
    std::uint32_t bits;
    std::memcpy(&bits, tile + index * 4, 4);
    return bits;
  };
  const int g = r % 8, upper = r / 8;
  if (format == TileFormat::Plain) {
    BFloat16 weight;
    const int lane = g * 4 + c / 4;
    weight.bits = static_cast<std::uint16_t>(word(lane * 4 + c % 4 / 2 * 2 + upper) >> (c % 2 * 16));
    return weight;
  }
  const int lane = g * 4 + c / 8, column = c % 8;
  const int words = format == TileFormat::Q4 ? 2 : 4;
  BFloat16 scale;
  scale.bits = static_cast<std::uint16_t>(word(32 * words + g) >> (16 * upper));
  float value;
  if (format == TileFormat::Q4) {
    value = code_value(format, word(lane * 2 + upper) >> (column / 2 * 4 + column % 2 * 16) & 15u);
  } else {
    const auto half = word(lane * 4 + column / 4 * 2 + upper) >> (column % 2 * 16) & 0xffffu;
    const bool second = column % 4 / 2 == 1;
    if (format == TileFormat::FP8) {
      value = code_value(format, second ? half >> 8 : half & 0xffu);
    } else {
      const auto magnitude = static_cast<float>((second ? half >> 8 : half) & 0x7fu);
      value = half & (second ? 0x80u : 0x8000u) ? -magnitude : magnitude;
    }
  }
  return BFloat16(static_cast<float>(scale) * value);
}

}  // namespace essh::reference
