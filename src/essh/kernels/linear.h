#pragma once
#include <span>

#include "essh/device/stream.h"
#include "essh/tensor/weight.h"

namespace essh {

// What the bits of a row of a product may depend on. Free: also on the number of rows beside it, as the fastest
// algorithm has it. Alone: on nothing but that row and the weights. Products on the CPU are always Alone.
enum class RowBits { Free, Alone };

// y = scale * [x W1^T, x W2^T, ...] + addend: linear maps of one input, their outputs side by side. Each element is
// summed in Wide<T>, whatever the format of the weight; on the CPU by one chain of fused multiply-adds from zero, in
// the order of the inner index.
template <class T, class Out = T>
struct Linear {
  Matrix<const T> x;                // rows x inputs
  std::span<const Weight> weights;  // outputs x inputs each
  Matrix<Out> y;                    // (=) rows x all outputs; does not alias x
  double scale = 1;
  Matrix<const Out> addend = {};  // like y, may be y itself; empty for zero
  RowBits bits = RowBits::Free;
};

template <class T, class Out>
void run(cpu::Stream&, const Linear<T, Out>&);
template <class T, class Out>
void run(cuda::Stream&, const Linear<T, Out>&);

}  // namespace essh
