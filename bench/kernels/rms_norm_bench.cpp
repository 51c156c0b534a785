#include "bench/kernels/operand.h"
#include "bench/machine.h"
#include "essh/kernels/rms_norm.h"

namespace essh::bench {
namespace {

constexpr Index kTokens = 8192, kWidth = 2048;
constexpr double kMatrix = static_cast<double>(kTokens * kWidth) * sizeof(float);

void rms_norm_forward(benchmark::State& state) {
  const Operand<float> x(kTokens, kWidth), y(kTokens, kWidth), gain(1, kWidth), inverse(1, kTokens);
  for (auto _ : state) run(stream(), RmsNormForward<float>{x.view(), gain.vector(), y.view(), inverse.vector(), 1e-5});
  count_bytes(state, 2 * kMatrix);
}
BENCHMARK(rms_norm_forward)->Unit(benchmark::kMillisecond)->MinTime(0.3)->UseRealTime();

void rms_norm_backward(benchmark::State& state) {
  const Operand<float> x(kTokens, kWidth), gain(1, kWidth), inverse(1, kTokens), d_y(kTokens, kWidth),
      d_x(kTokens, kWidth), d_gain(1, kWidth);
  for (auto _ : state) {
    run(stream(),
        RmsNormBackward<float>{x.view(), gain.vector(), inverse.vector(), d_y.view(), d_x.view(), d_gain.vector()});
  }
  count_bytes(state, 4 * kMatrix);
}
BENCHMARK(rms_norm_backward)->Unit(benchmark::kMillisecond)->MinTime(0.3)->UseRealTime();

}  // namespace
}  // namespace essh::bench
