#pragma once
#include <span>

#include "essh/device/stream.h"
#include "essh/tensor/weight.h"

namespace essh {

// What the bits of a row of a product may depend on. Free: also on the number of rows in the batch, because the fastest
// algorithm depends on it. Ranged: likewise, but no algorithm is tuned for one number alone, for passes whose number of
// rows seldom comes twice. Alone: only on that row and the weights. Products on the CPU are always Alone.
enum class RowBits { Free, Ranged, Alone };

// A norm that the kernel before may begin.
template <class T>
struct NextNorm {
  static constexpr Index kMostParts = 36;  // of a row
  Vector<const Wide<T>> gain;
  Matrix<T> y;              // (=) gain * x, x being what is normalised, not yet divided by the root mean square of x
  Matrix<Wide<T>> squares;  // (=) kMostParts x rows of x: sums of squares of a part of each row
  Index parts = 0;          // (=) how many; 0: the norm has not been begun
};

// y = scale * [x W1^T, x W2^T, ...] + addend: several linear maps of one input, outputs concatenated. Each element is
// summed in Wide<T>, whatever the weight's format; on the CPU by one chain of fused multiply-adds from zero, in the
// order of the inner index.
template <class T, class Out = T>
struct Linear {
  Matrix<const T> x;                // rows x inputs
  std::span<const Weight> weights;  // outputs x inputs each
  Matrix<Out> y;                    // (=) rows x all outputs; does not alias x
  double scale = 1;
  Matrix<const Out> addend = {};  // like y, may be y itself; empty means zero
  RowBits bits = RowBits::Free;
  NextNorm<T>* next = nullptr;  // of y; begun by kernels that can do that on the way
};

template <class T, class Out>
void run(cpu::Stream&, const Linear<T, Out>&);
template <class T, class Out>
void run(cuda::Stream&, const Linear<T, Out>&);

}  // namespace essh
