#pragma once
#include "essh/kernels/cuda/device/number.cuh"
#include "essh/tensor/matrix.h"

// Operands of the window step's kernels.
namespace essh::cuda::device {

template <class T>
struct StepOperands {
  Matrix<const T> q, k, v;
  T* const* keys;
  T* const* values;
  const Index* positions;
  Matrix<T> out;
};
struct StepShape {
  int kv_heads, group, head_dim;  // `group` query heads read one kv head
  Index window, rows;
  float scale;
  bool aligned;  // rows of the operands, and of caches whose address is a multiple of 16 bytes
  bool appends;  // the new row to the caches
};

__device__ inline bool is_aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

}  // namespace essh::cuda::device
