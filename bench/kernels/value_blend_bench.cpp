#include "bench/kernels/operand.h"
#include "bench/machine.h"
#include "essh/kernels/value_blend.h"

namespace essh::bench {
namespace {

constexpr Index kTokens = 8192, kChannels = 32;
constexpr double kEps = 1e-6;

double matrix_bytes(Index width) {
  return static_cast<double>(kTokens * kChannels * width) * sizeof(float);
}

void value_blend_forward(benchmark::State& state) {
  const Index width = state.range(0);
  const Operand<float> v0(kTokens, kChannels * width), v(kTokens, kChannels * width), blend(1, kChannels, 0, 1);
  for (auto _ : state) run(stream(), ValueBlendForward<float>{v0.view(), blend.vector(), v.view(), width, kEps});
  count_bytes(state, 2 * matrix_bytes(width));
}
BENCHMARK(value_blend_forward)
    ->ArgName("P")
    ->Arg(64)
    ->Arg(28)
    ->Unit(benchmark::kMillisecond)
    ->MinTime(0.3)
    ->UseRealTime();

void value_blend_backward(benchmark::State& state) {
  const Index width = state.range(0);
  const Operand<float> v0(kTokens, kChannels * width), d_v(kTokens, kChannels * width),
      d_v0(kTokens, kChannels * width), blend(1, kChannels, 0, 1), d_blend(1, kChannels);
  for (auto _ : state) {
    run(stream(),
        ValueBlendBackward<float>{v0.view(), blend.vector(), d_v.view(), d_v0.view(), d_blend.vector(), width, kEps});
  }
  count_bytes(state, 3 * matrix_bytes(width));
}
BENCHMARK(value_blend_backward)
    ->ArgName("P")
    ->Arg(64)
    ->Arg(28)
    ->Unit(benchmark::kMillisecond)
    ->MinTime(0.3)
    ->UseRealTime();

}  // namespace
}  // namespace essh::bench
