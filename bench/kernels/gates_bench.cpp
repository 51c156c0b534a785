#include "bench/kernels/operand.h"
#include "bench/machine.h"
#include "essh/kernels/gates.h"

namespace essh::bench {
namespace {

constexpr Index kTokens = 16384, kColumns = 256;
constexpr double kMatrix = static_cast<double>(kTokens * kColumns) * sizeof(float);

void gates_forward(benchmark::State& state) {
  const Operand<float> write(kTokens, kColumns), read(kTokens, kColumns), clock(kTokens, kColumns),
      bias(1, kColumns, 0, 0);
  for (auto _ : state) {
    run(stream(), GatesForward<float>{write.view(), read.view(), clock.view(), bias.vector(), bias.vector(),
                                      bias.vector(), write.view(), read.view(), clock.view()});
  }
  count_bytes(state, 6 * kMatrix);
}
BENCHMARK(gates_forward)->Unit(benchmark::kMillisecond)->MinTime(0.3)->UseRealTime();

void gates_backward(benchmark::State& state) {
  const Operand<float> gate(kTokens, kColumns, 0.9, 1.1), clock(kTokens, kColumns, 1, 2), d_write(kTokens, kColumns),
      d_read(kTokens, kColumns), d_clock(kTokens, kColumns), d_bias(3, kColumns);
  const auto bias = [&](Index r) { return Vector<float>{d_bias.view().row(r), kColumns}; };
  for (auto _ : state) {
    run(stream(),
        GatesBackward<float>{gate.view(), gate.view(), clock.view(), d_write.view(), d_read.view(), d_clock.view(),
                             d_write.view(), d_read.view(), d_clock.view(), bias(0), bias(1), bias(2)});
  }
  count_bytes(state, 9 * kMatrix);
}
BENCHMARK(gates_backward)->Unit(benchmark::kMillisecond)->MinTime(0.3)->UseRealTime();

}  // namespace
}  // namespace essh::bench
