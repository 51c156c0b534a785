#pragma once
#include "essh/tensor/matrix.h"

// Shared by the attention kernels: device operands, visibility, and the order of blocks.
namespace essh::cuda::device {

// Query j of a sequence is at position past + j. A slice is one head of one sequence, slice = sequence * heads + head.
// `group` consecutive query heads read one kv head.
struct AttentionShape {
  int heads, group, head_dim;
  int queries, past, window;
  float scale;

  __host__ __device__ int kv_heads() const { return heads / group; }
  __device__ int keys() const { return past + queries; }
  // Whether the query at `position` sees `key`.
  __device__ bool sees(int position, int key) const { return key <= position && key > position - window; }
  // Whether any query in [first, last] sees any key in [key, key + count), and whether all see all.
  __device__ bool any_sees(int first, int last, int key, int count) const {
    return key <= last && key + count - 1 > first - window;
  }
  __device__ bool all_see(int first, int last, int key, int count) const {
    return key + count - 1 <= first && key > last - window;
  }
};

// Blocks of rows of all slices on a one-dimensional grid: slices in groups whose keys and values fit in the L2 cache
// together; within a group, the first block of every slice, then the second blocks, and so on. Callers number blocks
// longest first, so that short ones fill the end.
struct BlockOrder {
  int slices, blocks, group;
  int first = 0;  // first slice

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

// Requires past = 0. log_sum and delta, the sum of d_out * out, are dense slices x queries.
template <class T>
struct BackwardOperands {
  Matrix<const T> q, k, v, d_out;
  const float *log_sum, *delta;
  Matrix<T> d_q, d_k, d_v;
};

}  // namespace essh::cuda::device
