#include "bench/kernels/operand.h"
#include "bench/machine.h"
#include "essh/kernels/gemm.h"

namespace essh::bench {
namespace {

// tokens x in -> out: the forward pass, the gradient of the input, the gradient of the weight.
enum Pass { kForward, kInputGradient, kWeightGradient };

void gemm(benchmark::State& state) {
  const Index tokens = state.range(0), in = state.range(1), out = state.range(2);
  const Operand<float> x(tokens, in), weight(out, in), y(tokens, out);
  for (auto _ : state) {
    switch (static_cast<Pass>(state.range(3))) {
      case kForward:
        run(stream(), Gemm<float>{x.view(), weight.view(), y.view(), Transpose::No, Transpose::Yes});
        break;
      case kInputGradient:
        run(stream(), Gemm<float>{y.view(), weight.view(), x.view()});
        break;
      case kWeightGradient:
        run(stream(), Gemm<float>{y.view(), x.view(), weight.view(), Transpose::Yes, Transpose::No});
        break;
    }
  }
  count_flops(state, 2.0 * static_cast<double>(tokens * in * out));
}
BENCHMARK(gemm)
    ->ArgNames({"tokens", "in", "out", "pass"})
    ->ArgsProduct({{512}, {896}, {896, 4608}, {kForward, kInputGradient, kWeightGradient}})
    ->ArgsProduct({{512}, {2048}, {5632}, {kForward, kInputGradient, kWeightGradient}})
    ->Args({64, 896, 4608, kForward})
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
