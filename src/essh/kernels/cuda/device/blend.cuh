#pragma once
#include "essh/kernels/cuda/device/number.cuh"

namespace essh::cuda {

// Squares of a run of a channel's values. Runs of four are summed by themselves and then by halves, so that every
// kernel finds the same sum however many lanes share a channel.
template <int N>
__device__ inline float run_squares(const float (&x)[N]) {
  float squares = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) squares += x[i] * x[i];
  return squares;
}

// Of `Lanes` neighbours, the same for each.
template <int Lanes>
__device__ inline float lanes_sum(float x) {
#pragma unroll
  for (int offset = Lanes / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

__device__ inline float inverse_rms(float squares, int width, float eps) {
  return 1.0f / sqrtf(squares / static_cast<float>(width) + eps);
}

// What the value blend multiplies a channel of a token with.
__device__ inline float blend_scale(float blend, float inverse) {
  return (1.0f - blend) + blend * inverse;
}

}  // namespace essh::cuda
