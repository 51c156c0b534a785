#pragma once
#include "essh/device/stream.h"

namespace essh {

// to(r, c) = from(order[r], c). `to` does not overlap `from`.
template <class W>
struct PermuteRows {
  Matrix<const W> from;
  Vector<const std::int32_t> order;  // one per row of `to`
  Matrix<W> to;                      // (=)
};

// to(r, c) = from(r, order[c]). `to` does not overlap `from`.
template <class W>
struct PermuteColumns {
  Matrix<const W> from;
  Vector<const std::int32_t> order;  // one per column of `to`
  Matrix<W> to;                      // (=)
};

template <class W>
void run(cpu::Stream&, const PermuteRows<W>&);
template <class W>
void run(cuda::Stream&, const PermuteRows<W>&);
template <class W>
void run(cpu::Stream&, const PermuteColumns<W>&);
template <class W>
void run(cuda::Stream&, const PermuteColumns<W>&);

}  // namespace essh
