#pragma once
#include "essh/kernels/cuda/device/number.cuh"

namespace essh::cuda {

// Sum of squares of N consecutive values of a channel. Groups of four are summed first and then pairwise, so that every
// kernel gets the same sum whatever the number of lanes per channel.
template <int N>
__device__ inline float run_squares(const float (&x)[N]) {
  float squares = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) squares += x[i] * x[i];
  return squares;
}

// Sum over `Lanes` consecutive lanes, in all of them.
template <int Lanes>
__device__ inline float lanes_sum(float x) {
#pragma unroll
  for (int offset = Lanes / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

__device__ inline float inverse_rms(float squares, int width, float eps) {
  return 1.0f / sqrtf(squares / static_cast<float>(width) + eps);
}

// The factor of the value blend for one channel of one token.
__device__ inline float blend_scale(float blend, float inverse) {
  return (1.0f - blend) + blend * inverse;
}

}  // namespace essh::cuda
