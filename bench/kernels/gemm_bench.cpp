#include <algorithm>
#include <chrono>

#include "bench/kernels/operand.h"
#include "bench/machine.h"
#include "essh/kernels/gemm.h"

namespace essh::bench {
namespace {

// tokens x in -> out: the forward pass, the gradient of the input, the gradient of the weight.
enum Pass { kForward, kInputGradient, kWeightGradient };

// Counter `of_blas`: the rate of this product in percent of OpenBLAS's. Both take turns, and the shortest of each
// counts.
void compare(benchmark::State& state, const Gemm<float>& op) {
  const auto seconds = [](const auto& body) {
    const auto start = std::chrono::steady_clock::now();
    body();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  if (!run_openblas(op)) return;
  constexpr double kPatience = 0.5;
  double ours = 1e30, theirs = 1e30, spent = 0;
  while (spent < kPatience) {
    const double mine = seconds([&] { run(stream(), op); }), library = seconds([&] { run_openblas(op); });
    ours = std::min(ours, mine);
    theirs = std::min(theirs, library);
    spent += mine + library;
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
