#include "bench/kernels/operand.h"
#include "bench/machine.h"
#include "essh/kernels/linear.h"

namespace essh::bench {
namespace {

// Decoding: a few rows times a weight larger than the caches, bound by reading the weight in its stored format.
void linear(benchmark::State& state) {
  const auto format = static_cast<Format>(state.range(0));
  const Index rows = state.range(1), in = state.range(2), out = state.range(3);
  const Operand<float> x(rows, in), y(rows, out);
  // Bit patterns of ordinary numbers in either format.
  const Operand<std::uint16_t> halves(format == Format::F32 ? 0 : out, in, 0x3000, 0x3c00);
  const Operand<float> floats(format == Format::F32 ? out : 0, in);
  const Weight weight = format == Format::F32 ? Weight(floats.view()) : Weight(format, halves.view().data, out, in);
  for (auto _ : state) run(stream(), Linear<float>{.x = x.view(), .weights = {&weight, 1}, .y = y.view()});
  state.SetLabel(traits(format).name);
  count_bytes(state, static_cast<double>(weight.bytes()));
}
BENCHMARK(linear)
    ->ArgNames({"format", "rows", "in", "out"})
    ->ArgsProduct({{static_cast<Index>(Format::F32), static_cast<Index>(Format::BF16), static_cast<Index>(Format::F16)},
                   {1, 2, 4, 8, 16, 32, 64},
                   {2048},
                   {50432}})
    ->Unit(benchmark::kMillisecond)
    ->MinTime(0.3)
    ->UseRealTime();

}  // namespace
}  // namespace essh::bench
