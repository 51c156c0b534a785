#include "essh/kernels/gemm.h"

#include <algorithm>

#ifdef ESSH_HAVE_OPENBLAS
#include <cblas.h>
extern "C" void openblas_set_num_threads(int);
#else
#include <Eigen/Dense>
#endif

namespace essh {
namespace {

// One thread's product through the library. OpenBLAS keeps to the calling thread: the team is ours.
#ifdef ESSH_HAVE_OPENBLAS
void single_threaded() {
  static const bool once = [] {
    openblas_set_num_threads(1);
    return true;
  }();
  static_cast<void>(once);
}

CBLAS_TRANSPOSE order(Transpose transpose) {
  return transpose == Transpose::Yes ? CblasTrans : CblasNoTrans;
}

void product(const Gemm<float>& op) {
  const Index inner = op.transpose_a == Transpose::Yes ? op.a.rows : op.a.cols;
  cblas_sgemm(CblasRowMajor, order(op.transpose_a), order(op.transpose_b), static_cast<int>(op.c.rows),
              static_cast<int>(op.c.cols), static_cast<int>(inner), static_cast<float>(op.alpha), op.a.data,
              static_cast<int>(op.a.stride), op.b.data, static_cast<int>(op.b.stride), static_cast<float>(op.beta),
              op.c.data, static_cast<int>(op.c.stride));
}
void product(const Gemm<double>& op) {
  const Index inner = op.transpose_a == Transpose::Yes ? op.a.rows : op.a.cols;
  cblas_dgemm(CblasRowMajor, order(op.transpose_a), order(op.transpose_b), static_cast<int>(op.c.rows),
              static_cast<int>(op.c.cols), static_cast<int>(inner), op.alpha, op.a.data, static_cast<int>(op.a.stride),
              op.b.data, static_cast<int>(op.b.stride), op.beta, op.c.data, static_cast<int>(op.c.stride));
}
#else
void single_threaded() {}

template <class T>
void product(const Gemm<T>& op) {
  using Dense = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using View = Eigen::Map<const Dense, 0, Eigen::OuterStride<> >;
  const View a(op.a.data, op.a.rows, op.a.cols, Eigen::OuterStride<>(op.a.stride));
  const View b(op.b.data, op.b.rows, op.b.cols, Eigen::OuterStride<>(op.b.stride));
  Eigen::Map<Dense, 0, Eigen::OuterStride<> > c(op.c.data, op.c.rows, op.c.cols, Eigen::OuterStride<>(op.c.stride));
  const T alpha = static_cast<T>(op.alpha);
  if (op.beta == 0)
    c.setZero();
  else if (op.beta != 1)
    c *= static_cast<T>(op.beta);
  const bool ta = op.transpose_a == Transpose::Yes, tb = op.transpose_b == Transpose::Yes;
  if (ta && tb)
    c.noalias() += alpha * a.transpose() * b.transpose();
  else if (ta)
    c.noalias() += alpha * a.transpose() * b;
  else if (tb)
    c.noalias() += alpha * a * b.transpose();
  else
    c.noalias() += alpha * a * b;
}
#endif

// The rows [begin, end) or columns of c, with what they need of a and b.
template <class T>
Gemm<T> rows_of(const Gemm<T>& op, Index begin, Index end) {
  Gemm<T> part = op;
  part.c = op.c.middle(begin, end - begin);
  part.a =
      op.transpose_a == Transpose::Yes ? op.a.block(0, op.a.rows, begin, end - begin) : op.a.middle(begin, end - begin);
  return part;
}
template <class T>
Gemm<T> columns_of(const Gemm<T>& op, Index begin, Index end) {
  Gemm<T> part = op;
  part.c = op.c.block(0, op.c.rows, begin, end - begin);
  part.b =
      op.transpose_b == Transpose::Yes ? op.b.middle(begin, end - begin) : op.b.block(0, op.b.rows, begin, end - begin);
  return part;
}

template <class T>
T dot(const T* x, const T* y, Index count) {
  constexpr Index kSums = 64;
  T sums[kSums] = {};
  Index i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (Index j = 0; j < kSums; ++j) sums[j] += x[i + j] * y[i + j];
  }
  for (Index j = 0; i < count; ++i, ++j) sums[j] += x[i] * y[i];
  for (Index half = kSums / 2; half > 0; half /= 2) {
    for (Index j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  return sums[0];
}

// Few rows times a weight [out, in]: bound by reading the weight once, so each thread takes a range of its rows.
template <class T>
void few_rows(cpu::Stream& stream, const Gemm<T>& op) {
  const T alpha = static_cast<T>(op.alpha), beta = static_cast<T>(op.beta);
  stream.pool().split(op.c.cols, [&](Index begin, Index end, int) {
    for (Index n = begin; n < end; ++n) {
      for (Index r = 0; r < op.c.rows; ++r) {
        const T value = alpha * dot(op.a.row(r), op.b.row(n), op.a.cols);
        T& c = op.c(r, n);
        c = beta == T(0) ? value : beta * c + value;
      }
    }
  });
}

}  // namespace

template <class T, class Out>
void run(cpu::Stream& stream, const Gemm<T, Out>& op) {
  if (op.c.rows == 0 || op.c.cols == 0) return;
  constexpr Index kFewRows = 4;
  if (op.c.rows <= kFewRows && op.transpose_a == Transpose::No && op.transpose_b == Transpose::Yes)
    return few_rows(stream, op);
  single_threaded();
  // Cut the longer side of c in multiples of the library's register tile.
  constexpr Index kTile = 16;
  const bool by_rows = op.c.rows >= op.c.cols;
  const Index side = by_rows ? op.c.rows : op.c.cols;
  stream.pool().split((side + kTile - 1) / kTile, [&](Index begin, Index end, int) {
    const Index first = begin * kTile, last = std::min(end * kTile, side);
    product(by_rows ? rows_of(op, first, last) : columns_of(op, first, last));
  });
}

template void run(cpu::Stream&, const Gemm<float>&);
template void run(cpu::Stream&, const Gemm<double>&);

}  // namespace essh
