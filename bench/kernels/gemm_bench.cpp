#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

#include "bench/kernels/operand.h"
#include "bench/machine.h"
#include "essh/kernels/gemm.h"

namespace essh::bench {
namespace {

// tokens x in -> out: the forward pass, the gradient of the input, the gradient of the weight.
enum Pass { kForward, kInputGradient, kWeightGradient };

// The shortest of the runs of one turn, which lasts kTurn seconds or one run.
template <class Body>
double shortest(const Body& body) {
  constexpr double kTurn = 0.015;
  double least = 1e30, spent = 0;
  while (spent < kTurn) {
    const auto start = std::chrono::steady_clock::now();
    body();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    least = std::min(least, seconds);
    spent += seconds;
  }
  return least;
}

// Ours and OpenBLAS take turns. Counters, in percent of OpenBLAS's rate: `of_blas` from the shortest run of all turns
// of each, `of_blas_mid` the median over the rounds of the ratio within a round.
void compare(benchmark::State& state, const Gemm<float>& op) {
  if (!run_openblas(op)) return;
  constexpr int kRounds = 9;
  constexpr std::chrono::milliseconds kSpinning{10};  // longer than OpenBLAS's threads spin after a turn
  double ours = 1e30, theirs = 1e30;
  std::array<double, kRounds> ratios;
  for (double& ratio : ratios) {
    const double blas = shortest([&] { run_openblas(op); });
    if (stream().pool().threads() > 1) std::this_thread::sleep_for(kSpinning);
    const double own = shortest([&] { run(stream(), op); });
    ratio = blas / own;
    theirs = std::min(theirs, blas);
    ours = std::min(ours, own);
  }
  std::sort(ratios.begin(), ratios.end());
  state.counters["of_blas"] = 100 * theirs / ours;
  state.counters["of_blas_mid"] = 100 * ratios[kRounds / 2];
}

void gemm(benchmark::State& state) {
  const Index tokens = state.range(0), in = state.range(1), out = state.range(2);
  const Operand<float> x(tokens, in), weight(out, in), y(tokens, out);
  const Gemm<float> passes[] = {{x.view(), weight.view(), y.view(), Transpose::No, Transpose::Yes},
                                {y.view(), weight.view(), x.view()},
                                {y.view(), x.view(), weight.view(), Transpose::Yes, Transpose::No}};
  const Gemm<float>& op = passes[state.range(3)];
  for (auto _ : state) run(stream(), op);
  count_flops(state, 2.0 * static_cast<double>(tokens * in * out));
  compare(state, op);
}
BENCHMARK(gemm)
    ->ArgNames({"tokens", "in", "out", "pass"})
    ->ArgsProduct({{512}, {896}, {896, 4608}, {kForward, kInputGradient, kWeightGradient}})
    ->ArgsProduct({{512}, {2048}, {5632}, {kForward, kInputGradient, kWeightGradient}})
    ->ArgsProduct({{32, 64}, {2048}, {2048}, {kForward, kInputGradient, kWeightGradient}})
    ->Args({64, 896, 4608, kForward})
    ->ArgsProduct({{1024}, {128}, {128, 512}, {kForward, kInputGradient, kWeightGradient}})
    ->Args({8, 2048, 5632, kForward})
    ->Unit(benchmark::kMillisecond)
    ->MinTime(0.1)
    ->UseRealTime();

// Decoding: a few rows times a weight larger than the caches, bound by reading the weight.
void few_rows(benchmark::State& state) {
  const Index rows = state.range(0), in = state.range(1), out = state.range(2);
  const Operand<float> x(rows, in), weight(out, in), y(rows, out);
  for (auto _ : state) run(stream(), Gemm<float>{x.view(), weight.view(), y.view(), Transpose::No, Transpose::Yes});
  count_bytes(state, static_cast<double>(in * out) * sizeof(float));
}
BENCHMARK(few_rows)
    ->ArgNames({"rows", "in", "out"})
    ->ArgsProduct({{1, 2, 4}, {2048}, {50432}})
    ->Unit(benchmark::kMillisecond)
    ->MinTime(0.3)
    ->UseRealTime();

}  // namespace
}  // namespace essh::bench
