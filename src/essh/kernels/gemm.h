#pragma once
#include "essh/device/stream.h"

namespace essh {

enum class Transpose { No, Yes };

// c = alpha * op(a) * op(b) + beta * addend; an empty addend means c itself. With beta 0 neither c nor the addend is
// read. c aliases neither a nor b. On the CPU each element is one chain of fused multiply-adds from zero in the order
// of the inner index, then scaled and added: its bits depend only on one row of op(a) and one column of op(b).
template <class T, class Out = T>
struct Gemm {
  Matrix<const T> a;
  Matrix<const T> b;
  Matrix<Out> c;
  Transpose transpose_a = Transpose::No;
  Transpose transpose_b = Transpose::No;
  double alpha = 1;
  double beta = 0;
  Matrix<const Out> addend = {};
};

template <class T, class Out>
void run(cpu::Stream&, const Gemm<T, Out>&);
template <class T, class Out>
void run(cuda::Stream&, const Gemm<T, Out>&);

}  // namespace essh
