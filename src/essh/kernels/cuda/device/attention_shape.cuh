#pragma once
#include "essh/tensor/matrix.h"

// What the attention kernels share: operands as they travel to the device, who sees whom, and the order of blocks.
namespace essh::cuda::device {

// Query j of a sequence stands at key past + j. A slice is one head of one sequence, slice = sequence * heads + head.
// `group` neighbouring query heads read one kv head.
struct AttentionShape {
  int heads, group, head_dim;
  int queries, past, window;
  float scale;

  __host__ __device__ int kv_heads() const { return heads / group; }
  __device__ int keys() const { return past + queries; }
  // Does the query at `position` see `key`?
  __device__ bool sees(int position, int key) const { return key <= position && key > position - window; }
  // Of queries at [first, last] and keys [key, key + count): does any see any, do all see all?
  __device__ bool any_sees(int first, int last, int key, int count) const {
    return key <= last && key + count - 1 > first - window;
  }
  __device__ bool all_see(int first, int last, int key, int count) const {
    return key + count - 1 <= first && key > last - window;
  }
};

// The blocks of rows of all slices on a grid of one dimension: slices in groups whose keys and values stay in the
// second-level cache together, within a group all first blocks, then all second ones. Callers number blocks so that the
// longest come first, which leaves short ones to fill the end.
struct BlockOrder {
  int slices, blocks, group;
  int first = 0;  // slice

  struct Place {
    int slice, block;
  };
  __host__ __device__ Place place(int index) const {
    const int passed = index / (group * blocks) * group, rest = index - passed * blocks;
    const int members = group < slices - passed ? group : slices - passed;
    return {first + passed + rest % members, rest / members};
  }
};

template <class T>
struct ForwardOperands {
  Matrix<const T> q, k, v;
  Matrix<T> out;
  Matrix<float> log_sum;  // may be empty
};

// past = 0. log_sum and delta, the sum of d_out * out, are slices x queries, dense.
template <class T>
struct BackwardOperands {
  Matrix<const T> q, k, v, d_out;
  const float *log_sum, *delta;
  Matrix<T> d_q, d_k, d_v;
};

}  // namespace essh::cuda::device
