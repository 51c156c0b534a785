#include "bench/machine.h"

#include <algorithm>
#include <chrono>

#include "bench/kernels/operand.h"
#include "essh/base/memory_reader.h"
#include "essh/kernels/gemm.h"

namespace essh::bench {
namespace {

// Shortest of several repetitions: other programs can only slow one down.
template <class Body>
double best_seconds(int runs, Body&& body) {
  double best = 1e30;
  for (int run = 0; run < runs; ++run) {
    const auto start = std::chrono::steady_clock::now();
    body();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

class Square {
 public:
  explicit Square(Index side) : a_(side, side), b_(side, side), c_(side, side) {}
  void operator()() const { run(stream(), Gemm<float>{a_.view(), b_.view(), c_.view()}); }
  double flops() const {
    const auto side = static_cast<double>(a_.view().rows);
    return 2 * side * side * side;
  }

 private:
  Operand<float> a_, b_, c_;
};

double measure_flops() {
  double best = 0;
  for (const Index side : {1024, 2048}) {
    const Square square(side);
    best = std::max(best, square.flops() / best_seconds(3, square));
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
  static const Machine measured = [] {
    const auto openblas = measure_openblas();
    return Machine{measure_read_bandwidth(stream().pool()).bytes_per_second,
                   std::max(measure_flops(), openblas.flops_per_second), openblas};
  }();
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
  state.counters["tokens/s"] =
      benchmark::Counter(tokens_per_iteration * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

namespace {

// The peaks as ordinary lines: their distance from 100 % is the load by other programs.
void machine_read(benchmark::State& state) {
  MemoryReader memory(stream().pool());
  for (auto _ : state) memory.read();
  count_bytes(state, static_cast<double>(memory.bytes()));
}
BENCHMARK(machine_read)->Unit(benchmark::kMillisecond)->MinTime(0.3)->UseRealTime();

void machine_sgemm(benchmark::State& state) {
  const Square square(2048);
  for (auto _ : state) square();
  count_flops(state, square.flops());
}
BENCHMARK(machine_sgemm)->Unit(benchmark::kMillisecond)->MinTime(0.3)->UseRealTime();

}  // namespace

}  // namespace essh::bench
