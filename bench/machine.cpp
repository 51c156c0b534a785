#include "bench/machine.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "bench/kernels/operand.h"
#include "essh/kernels/gemm.h"

namespace essh::bench {
namespace {

// Shortest of several runs: other programs can only make a run longer.
template <class Body>
double best_seconds(int runs, const Body& body) {
  double best = 1e30;
  for (int run = 0; run < runs; ++run) {
    const auto start = std::chrono::steady_clock::now();
    body();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

double measure_read() {
  constexpr Index kBytes = Index{512} << 20, kLanes = 64, kCount = kBytes / static_cast<Index>(sizeof(float));
  const Operand<float> buffer(kCount / kLanes, kLanes);
  const float* data = buffer.view().data;
  std::vector<float> sums(static_cast<std::size_t>(stream().pool().threads()));
  const double seconds = best_seconds(5, [&] {
    stream().pool().split(kCount / kLanes, [&](Index begin, Index end, int thread) {
      float lanes[kLanes] = {};
      for (Index i = begin; i < end; ++i) {
        for (Index j = 0; j < kLanes; ++j) lanes[j] += data[i * kLanes + j];
      }
      for (const float lane : lanes) sums[static_cast<std::size_t>(thread)] += lane;
    });
    benchmark::DoNotOptimize(sums.data());
  });
  return static_cast<double>(kBytes) / seconds;
}

double measure_flops() {
  double best = 0;
  for (const Index side : {1024, 2048}) {
    const Operand<float> a(side, side), b(side, side), c(side, side);
    const double seconds = best_seconds(3, [&] { run(stream(), Gemm<float>{a.view(), b.view(), c.view()}); });
    best = std::max(best, 2.0 * static_cast<double>(side * side * side) / seconds);
  }
  return best;
}

void count(benchmark::State& state, const char* unit, double amount, double unit_size, double peak) {
  using benchmark::Counter;
  const double total = amount * static_cast<double>(state.iterations());
  state.counters[unit] = Counter(total / unit_size, Counter::kIsRate);
  state.counters["of_peak"] = Counter(100 * total / peak, Counter::kIsRate);
}

}  // namespace

const Machine& machine() {
  static const Machine measured{measure_read(), measure_flops()};
  return measured;
}

cpu::Stream& stream() {
  static cpu::Stream team;
  return team;
}

void count_flops(benchmark::State& state, double flops_per_iteration) {
  count(state, "GFLOP/s", flops_per_iteration, 1e9, machine().flops_per_second);
}
void count_bytes(benchmark::State& state, double bytes_per_iteration) {
  count(state, "GB/s", bytes_per_iteration, 1e9, machine().read_bytes_per_second);
}
void count_tokens(benchmark::State& state, double tokens_per_iteration) {
  state.counters["tokens/s"] = benchmark::Counter(tokens_per_iteration * static_cast<double>(state.iterations()),
                                                  benchmark::Counter::kIsRate);
}

}  // namespace essh::bench
