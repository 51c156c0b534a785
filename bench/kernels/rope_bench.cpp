#include "bench/kernels/operand.h"
#include "bench/machine.h"
#include "essh/kernels/rope.h"

namespace essh::bench {
namespace {

void rope(benchmark::State& state) {
  const Index tokens = 8192, heads = 16, head_dim = state.range(0);
  const Operand<float> x(tokens, heads * head_dim);
  for (auto _ : state) run(stream(), Rope<float>{x.view(), 1024, head_dim, {}, 10000});
  count_bytes(state, 2.0 * static_cast<double>(tokens * heads * head_dim) * sizeof(float));
}
BENCHMARK(rope)->ArgName("head_dim")->Arg(64)->Arg(128)->Unit(benchmark::kMillisecond)->MinTime(0.3)->UseRealTime();

}  // namespace
}  // namespace essh::bench
