#pragma once
#include "essh/device/stream.h"
#include "essh/kernels/cross_entropy.h"

namespace essh {

// totals[0] += sum of label, totals[1] += sum of divergence, totals[2] += number of targets that are not ignored; the
// order of the additions is fixed.
template <class W>
struct LossSum {
  Vector<const W> label;
  Vector<const W> divergence;  // may be empty
  Vector<const std::int32_t> targets;
  Vector<double> totals;  // (+=) 3 elements
};

template <class W>
void run(cpu::Stream&, const LossSum<W>&);
template <class W>
void run(cuda::Stream&, const LossSum<W>&);

}  // namespace essh
