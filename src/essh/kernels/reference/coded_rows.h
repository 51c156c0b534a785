#pragma once
#include <cmath>
#include <cstring>

#include "essh/kernels/coded_rows.h"

namespace essh::reference {

// One head of a row: its codes, and the scale at `scale`, both perhaps misaligned.
template <class T>
void store_coded_head(Index head_dim, const T* from, std::byte* codes, std::byte* scale) {
  float largest = 0;
  for (Index c = 0; c < head_dim; ++c) largest = std::fmax(largest, std::abs(static_cast<float>(from[c])));
  BFloat16 factor;
  factor.bits = e4m3_scale_bits(largest);
  std::memcpy(scale, &factor, sizeof(factor));
  for (Index c = 0; c < head_dim; ++c) {
    const float x = static_cast<float>(from[c]);
    codes[c] = std::byte{to_e4m3(factor.bits == 0 && x == 0 ? 0.0f : x / static_cast<float>(factor))};
  }
}

template <class T>
void load_coded_head(Index head_dim, const std::byte* codes, const std::byte* scale, T* to) {
  BFloat16 factor;
  std::memcpy(&factor, scale, sizeof(factor));
  for (Index c = 0; c < head_dim; ++c)
    to[c] = static_cast<T>(static_cast<float>(factor) * from_e4m3(std::to_integer<std::uint8_t>(codes[c])));
}

}  // namespace essh::reference
