#include "essh/device/cuda/launch.cuh"
#include "essh/kernels/cuda/device/number.cuh"
#include "essh/kernels/cuda/matmul_plans.h"

namespace essh::cuda {
namespace {

template <class T>
__global__ void gaps(const T* a, const T* b, Index count, int* result) {
  float gap = 0, largest = 0;
  for (Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += Index{gridDim.x} * blockDim.x) {
    const float x = widen(a[i]), y = widen(b[i]);
    gap = fmaxf(gap, x == x && y == y ? fabsf(x - y) : INFINITY);
    largest = fmaxf(largest, fabsf(x));
  }
  gap = warp_max(gap);
  largest = warp_max(largest);
  // Non-negative floats compare like their bits.
  if (threadIdx.x % 32 == 0) {
    atomicMax(result, __float_as_int(gap));
    atomicMax(result + 1, __float_as_int(largest));
  }
}

// `never` is null; without it the compiler would leave out the loads.
__global__ void read_all(const uint4* from, Index count, unsigned* never) {
  unsigned sum = 0;
  for (Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += Index{gridDim.x} * blockDim.x) {
    const uint4 x = from[i];
    sum += x.x ^ x.y ^ x.z ^ x.w;
  }
  if (never != nullptr) *never = sum;
}

}  // namespace

void fill_cache(Stream& stream, const void* from, std::size_t bytes) {
  launch(stream, "fill cache", {1024, 256}, read_all, static_cast<const uint4*>(from),
         static_cast<Index>(bytes / sizeof(uint4)), static_cast<unsigned*>(nullptr));
}

Difference compare(Stream& stream, MatmulType type, const void* a, const void* b, Index elements) {
  Scratch scratch(stream);
  int* result = scratch.take<int>(2);
  check(cudaMemsetAsync(result, 0, 2 * sizeof(int), stream.handle()), "compare");
  if (type == MatmulType::BFloat16) {
    launch(stream, "compare", {512, 256}, gaps<BFloat16>, static_cast<const BFloat16*>(a),
           static_cast<const BFloat16*>(b), elements, result);
  } else {
    launch(stream, "compare", {512, 256}, gaps<float>, static_cast<const float*>(a), static_cast<const float*>(b),
           elements, result);
  }
  Difference found{};
  stream.copy(&found, result, sizeof(found));
  return found;
}

}  // namespace essh::cuda
