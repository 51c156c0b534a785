#include "bench/kernels/operand.h"
#include "bench/machine.h"
#include "essh/kernels/window_step.h"

namespace essh::bench {
namespace {

// A step of one token per sequence in full windows of 2048 rows. Steps take turns in caches that together are larger
// than the caches of the processor, as weights are read between two steps of a model.
void window_step(benchmark::State& state) {
  constexpr Index kWindow = 2048, kLeastBytes = Index{256} << 20;
  const Index sequences = state.range(0), heads = state.range(1), head_dim = state.range(2);
  const Index width = heads * head_dim, side_bytes = sequences * kWindow * width * static_cast<Index>(sizeof(float));
  const Index turns = std::max<Index>(2, kLeastBytes / (2 * side_bytes));
  const Operand<float> q(sequences, width), k(sequences, width), v(sequences, width), out(sequences, width),
      keys(turns * sequences * kWindow, width), values(turns * sequences * kWindow, width);
  const std::vector<Index> positions(static_cast<std::size_t>(sequences), 3 * kWindow / 2);
  std::vector<float*> key_caches, value_caches;
  for (Index i = 0; i < turns * sequences; ++i) {
    key_caches.push_back(keys.view().row(i * kWindow));
    value_caches.push_back(values.view().row(i * kWindow));
  }
  Index turn = 0;
  for (auto _ : state) {
    const Index first = turn * sequences;
    turn = (turn + 1) % turns;
    run(stream(), WindowStep<float>{.head_dim = head_dim,
                                    .window = kWindow,
                                    .rows = kWindow,
                                    .longest = kWindow,
                                    .q = q.view(),
                                    .k = k.view(),
                                    .v = v.view(),
                                    .keys = {key_caches.data() + first, sequences},
                                    .values = {value_caches.data() + first, sequences},
                                    .positions = {positions.data(), sequences},
                                    .out = out.view()});
  }
  count_bytes(state, 2.0 * static_cast<double>(side_bytes));
}
BENCHMARK(window_step)
    ->ArgNames({"sequences", "heads", "head_dim"})
    ->Args({1, 14, 64})
    ->Args({1, 32, 64})
    ->Args({8, 14, 64})
    ->Unit(benchmark::kMillisecond)
    ->MinTime(0.5)
    ->UseRealTime();

}  // namespace
}  // namespace essh::bench
