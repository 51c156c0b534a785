#pragma once
#include "essh/kernels/linear.h"
#include "essh/kernels/swiglu.h"

namespace essh {

// hidden = silu(g) * u, where [g, u] = x [G, U]^T, silu(x) = x sigmoid(x). g and u are rounded to T.
template <class T>
struct GatedLinear {
  // The gates in the left half of its y, u in the right one; y is room for them and may hold anything afterwards.
  Linear<T> both;
  Matrix<T> hidden;                      // (=) may be one half of both.y
  Vector<const std::int32_t> kept = {};  // columns kept in each row, the others are 0; empty means all
};

template <class T>
void run(cpu::Stream&, const GatedLinear<T>&);
template <class T>
void run(cuda::Stream&, const GatedLinear<T>&);

// The unfused version: the products, then the gates.
template <class T, class Stream>
void run_parts(Stream& stream, const GatedLinear<T>& op) {
  run(stream, op.both);
  const Index units = op.hidden.cols;
  run(stream, SwigluForward<T>{.gate = op.both.y.left(units),
                               .up = op.both.y.block(0, op.hidden.rows, units, units),
                               .hidden = op.hidden,
                               .kept = op.kept});
}

}  // namespace essh
