#pragma once
#include "essh/device/stream.h"

namespace essh {

// sum += sum over i of x[i]^2. Short runs are summed in W and those sums in double, in a fixed order whatever the
// number of threads.
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
