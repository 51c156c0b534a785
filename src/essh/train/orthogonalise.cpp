#include "essh/train/orthogonalise.h"

#include <algorithm>

#include "essh/kernels/clear.h"
#include "essh/kernels/copy.h"
#include "essh/kernels/gemm.h"
#include "essh/kernels/muon.h"
#include "essh/kernels/square_sum.h"

namespace essh {
namespace {

constexpr int kSteps = 5;
// s -> kA s + kB s^3 + kC s^5: steepest at zero among the quintics that keep singular values near one (Jordan 2024).
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;

}  // namespace

template <class T>
void orthogonalise(Stream& stream, Arena& arena, Matrix<const Wide<T>> x, double scale, Matrix<T> y) {
  const auto mark = arena.mark();
  if (x.stride != x.cols) {
    const auto packed = arena.matrix<Wide<T>>(x.rows, x.cols);
    launch(stream, Copy<Wide<T>>{.from = x, .to = packed});
    x = packed;
  }
  const Index size = x.rows * x.cols;
  const auto squares = arena.vector<double>(1);
  clear(stream, squares);
  launch(stream, SquareSum<Wide<T>>{.x = {x.data, size}, .sum = squares.data});
  auto now = arena.matrix<T>(x.rows, x.cols), next = arena.matrix<T>(x.rows, x.cols);
  launch(stream, MuonNormalise<T>{.from = {x.data, size}, .squares = squares.data, .to = {now.data, size}});

  // gram = X X^T, X <- (kA + kB gram + kC gram^2) X; of a tall matrix, the transpose of all that.
  const bool tall = x.rows > x.cols;
  const Index side = std::min(x.rows, x.cols);
  const auto gram = arena.matrix<T>(side, side), factor = arena.matrix<T>(side, side);
  for (int step = 0; step < kSteps; ++step) {
    const bool last = step + 1 == kSteps;
    launch(stream, Gemm<T>{.a = now,
                           .b = now,
                           .c = gram,
                           .transpose_a = tall ? Transpose::Yes : Transpose::No,
                           .transpose_b = tall ? Transpose::No : Transpose::Yes});
    launch(stream, Gemm<T>{.a = gram, .b = gram, .c = factor, .alpha = kC, .beta = kB, .addend = gram});
    launch(stream, Gemm<T>{.a = tall ? now : factor,
                           .b = tall ? factor : now,
                           .c = last ? y : next,
                           .alpha = last ? scale : 1,
                           .beta = last ? scale * kA : kA,
                           .addend = now});
    std::swap(now, next);
  }
  arena.release(mark);
}

template void orthogonalise(Stream&, Arena&, Matrix<const float>, double, Matrix<float>);
template void orthogonalise(Stream&, Arena&, Matrix<const float>, double, Matrix<BFloat16>);

}  // namespace essh
