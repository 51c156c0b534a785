#include "bench/kernels/operand.h"
#include "bench/machine.h"
#include "essh/kernels/window_attention.h"

namespace essh::bench {
namespace {

constexpr Index kHeads = 8;

// Visible pairs of query and key, in one head.
double pairs(Index length, Index window) {
  double sum = 0;
  for (Index t = 0; t < length; ++t) sum += static_cast<double>(std::min(t + 1, window));
  return sum;
}

struct Problem {
  Index length, head_dim, window;
  Operand<float> q, k, v, out, log_sum;

  explicit Problem(const benchmark::State& state)
      : length(state.range(0)),
        head_dim(state.range(1)),
        window(state.range(2)),
        q(length, kHeads * head_dim),
        k(length, kHeads * head_dim),
        v(length, kHeads * head_dim),
        out(length, kHeads * head_dim),
        log_sum(length, kHeads) {}
  void forward() const {
    run(stream(), WindowAttentionForward<float>{1, length, 0, head_dim, window, q.view(), k.view(), v.view(),
                                                out.view(), log_sum.view()});
  }
  // FLOPs of one dot product, or one scaled addition of a row, for every pair.
  double product() const { return 2.0 * static_cast<double>(kHeads * head_dim) * pairs(length, window); }
};

void shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"tokens", "head_dim", "window"})
      ->Args({1024, 64, 512})
      ->Args({2048, 128, 2048})
      ->Unit(benchmark::kMillisecond)
      ->MinTime(0.3)
      ->UseRealTime();
}

void window_attention_forward(benchmark::State& state) {
  const Problem p(state);
  for (auto _ : state) p.forward();
  count_flops(state, 2 * p.product());
  count_tokens(state, static_cast<double>(p.length));
}
BENCHMARK(window_attention_forward)->Apply(shapes);

void window_attention_backward(benchmark::State& state) {
  const Problem p(state), gradient(state);
  p.forward();
  for (auto _ : state) {
    run(stream(), WindowAttentionBackward<float>{1, p.length, p.head_dim, p.window, p.q.view(), p.k.view(), p.v.view(),
                                                 p.out.view(), p.log_sum.view(), gradient.out.view(), gradient.q.view(),
                                                 gradient.k.view(), gradient.v.view()});
  }
  count_flops(state, 5 * p.product());
  count_tokens(state, static_cast<double>(p.length));
}
BENCHMARK(window_attention_backward)->Apply(shapes);

// One token attending to a full window of keys and values, larger than the caches.
void window_attention_step(benchmark::State& state) {
  const Index sequences = 32, head_dim = 128, window = state.range(0);
  const Operand<float> q(sequences, kHeads * head_dim), out(sequences, kHeads * head_dim),
      k(sequences * window, kHeads * head_dim), v(sequences * window, kHeads * head_dim);
  for (auto _ : state) {
    run(stream(), WindowAttentionForward<float>{
                      sequences, 1, window - 1, head_dim, window, q.view(), k.view(), v.view(), out.view(), {}});
  }
  count_bytes(state, 2.0 * static_cast<double>(sequences * window * kHeads * head_dim) * sizeof(float));
}
BENCHMARK(window_attention_step)
    ->ArgName("window")
    ->Arg(1024)
    ->Unit(benchmark::kMillisecond)
    ->MinTime(0.3)
    ->UseRealTime();

}  // namespace
}  // namespace essh::bench
