#pragma once
#include "essh/kernels/cuda/device/scan_chunk.cuh"

namespace essh::cuda {

// Whether the kernels of scan_tensor_*.cuh apply, which cover the sizes of the presets; other sizes use tile products.
inline bool fits_tensor_scan(Index modes, Index width) {
  return modes <= 8 && width <= 64;
}
// Calls body.operator()<P>() with the smallest padded width P.
template <class Body>
void with_tensor_width(Index width, const Body& body) {
  if (width <= 16) return body.template operator()<16>();
  if (width <= 32) return body.template operator()<32>();
  body.template operator()<64>();
}

// Calls body.operator()<ScanSizes>() with the smallest sizes that hold this many modes and values per channel.
template <class T, class Body>
void with_scan_sizes(Index modes, Index width, const Body& body) {
  if (modes > 16 || width > 128)
    fail(ErrorKind::Unsupported, "on CUDA a channel has at most 16 modes and 128 values, got {} and {}", modes, width);
  if constexpr (!std::is_same_v<T, BFloat16>) {
    if (modes <= 8 && width <= 64) return body.template operator()<ScanSizes<T, 16, 64>>();
  }
  body.template operator()<ScanSizes<T, 32, 128>>();
}

}  // namespace essh::cuda
