#pragma once
#include "essh/device/stream.h"

namespace essh {

// sum += sum over i of x[i]^2. Short ranges are summed in W and their sums in double, in an order that does not depend
// on the number of threads.
template <class W>
struct SquareSum {
  Vector<const W> x;
  double* sum;  // (+=) one element
};

template <class W>
void run(cpu::Stream&, const SquareSum<W>&);
template <class W>
void run(cuda::Stream&, const SquareSum<W>&);

}  // namespace essh
