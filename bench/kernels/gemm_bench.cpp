#include <algorithm>
#include <chrono>

#include "bench/kernels/operand.h"
#include "bench/machine.h"
#include "essh/kernels/gemm.h"

namespace essh::bench {
namespace {

// tokens x in -> out: the forward pass, the gradient of the input, the gradient of the weight.
enum Pass { kForward, kInputGradient, kWeightGradient };

// The shortest of at least two runs in at least kTurn seconds.
template <class Body>
double shortest(const Body& body) {
  constexpr double kTurn = 0.1;
  double least = 1e30, spent = 0;
  for (int runs = 0; runs < 2 || spent < kTurn; ++runs) {
    const auto start = std::chrono::steady_clock::now();
    body();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    least = std::min(least, seconds);
    spent += seconds;
  }
  return least;
}

// Counter `of_blas`: the rate of this product in percent of OpenBLAS's. Both take turns, and the shortest of each
// counts. A turn outlasts the 2^26 cycles for which OpenBLAS's threads go on spinning, on the cores of the next turn.
void compare(benchmark::State& state, const Gemm<float>& op) {
  if (!run_openblas(op)) return;
  constexpr int kRounds = 3;
  double ours = 1e30, theirs = 1e30;
  for (int round = 0; round < kRounds; ++round) {
    theirs = std::min(theirs, shortest([&] { run_openblas(op); }));
    ours = std::min(ours, shortest([&] { run(stream(), op); }));
  }
  state.counters["of_blas"] = 100 * theirs / ours;
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
    ->MinTime(0.3)
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
