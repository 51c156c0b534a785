#pragma once
#include "essh/kernels/cuda/device/scan_chunk.cuh"

namespace essh::cuda {

// Calls body.operator()<ScanSizes>() with the smallest sizes that hold so many modes and values per channel.
template <class T, class Body>
void with_scan_sizes(Index modes, Index width, const Body& body) {
  if (modes > 16 || width > 128)
    fail(ErrorKind::Unsupported, "on CUDA a channel has at most 16 modes and 128 values, got {} and {}", modes, width);
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (modes <= 8 && width <= 16) return body.template operator()<ScanSizes<T, 16, 16>>();
    if (modes <= 8 && width <= 32) return body.template operator()<ScanSizes<T, 16, 32>>();
    if (modes <= 8 && width <= 64) return body.template operator()<ScanSizes<T, 16, 64>>();
    if (width <= 64) return body.template operator()<ScanSizes<T, 32, 64>>();
  } else {
    if (modes <= 8 && width <= 64) return body.template operator()<ScanSizes<T, 16, 64>>();
  }
  body.template operator()<ScanSizes<T, 32, 128>>();
}

}  // namespace essh::cuda
