#include "bench/kernels/operand.h"
#include "bench/machine.h"
#include "essh/kernels/swiglu.h"

namespace essh::bench {
namespace {

constexpr Index kTokens = 4096, kWidth = 5632;
constexpr double kMatrix = static_cast<double>(kTokens * kWidth) * sizeof(float);

void swiglu_forward(benchmark::State& state) {
  const Operand<float> gate(kTokens, kWidth), up(kTokens, kWidth), hidden(kTokens, kWidth);
  for (auto _ : state) run(stream(), SwigluForward<float>{gate.view(), up.view(), hidden.view()});
  count_bytes(state, 3 * kMatrix);
}
BENCHMARK(swiglu_forward)->Unit(benchmark::kMillisecond)->MinTime(0.3)->UseRealTime();

void swiglu_backward(benchmark::State& state) {
  const Operand<float> gate(kTokens, kWidth), up(kTokens, kWidth), d_hidden(kTokens, kWidth), d_gate(kTokens, kWidth),
      d_up(kTokens, kWidth);
  for (auto _ : state)
    run(stream(), SwigluBackward<float>{gate.view(), up.view(), d_hidden.view(), d_gate.view(), d_up.view()});
  count_bytes(state, 5 * kMatrix);
}
BENCHMARK(swiglu_backward)->Unit(benchmark::kMillisecond)->MinTime(0.3)->UseRealTime();

}  // namespace
}  // namespace essh::bench
