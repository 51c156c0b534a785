#include <vector>

#include "bench/kernels/operand.h"
#include "bench/machine.h"
#include "essh/kernels/selective_scan.h"

namespace essh::bench {
namespace {

constexpr Index kChannels = 32, kModes = 8;

struct Problem {
  Index sequences, length, width;
  Operand<float> v, write, read, clock, z, boundary, state;
  Operand<float> decay{kChannels, kModes, -9, 0}, frequency{kChannels, kModes, 0, 3}, readout_cos{kChannels, kModes},
      readout_sin{kChannels, kModes}, zero_lag{kChannels, kModes, 0, 1};

  Problem(Index b, Index l, Index p)
      : sequences(b),
        length(l),
        width(p),
        v(b * l, kChannels * p),
        write(b * l, kChannels * kModes, 0, 2),
        read(b * l, kChannels * kModes, 0, 2),
        clock(b * l, kChannels * kModes, 0, 0.1),
        z(b * l, kChannels * p),
        boundary(b * scan_chunks(l), kChannels * 2 * kModes * p),
        state(b, kChannels * 2 * kModes * p) {}

  Modes<float> modes() const {
    return {decay.view(), frequency.view(), readout_cos.view(), readout_sin.view(), zero_lag.view()};
  }
  std::vector<float*> states() const {
    std::vector<float*> rows;
    for (Index b = 0; b < sequences; ++b) rows.push_back(state.view().row(b));
    return rows;
  }
  double tokens() const { return static_cast<double>(sequences * length); }
  // FLOPs per token of products over the lower triangle of a chunk, and over the whole chunk.
  double triangle(Index columns) const { return static_cast<double>(kChannels * kScanChunk * columns); }
  double rectangle() const { return static_cast<double>(2 * kChannels * 2 * kModes * width); }
};

void selective_scan_forward(benchmark::State& state) {
  const Problem p(1, 1024, state.range(0));
  const auto states = p.states();
  for (auto _ : state) {
    run(stream(), SelectiveScanForward<float>{.sequences = p.sequences,
                                              .length = p.length,
                                              .width = p.width,
                                              .v = p.v.view(),
                                              .write = p.write.view(),
                                              .read = p.read.view(),
                                              .clock = p.clock.view(),
                                              .modes = p.modes(),
                                              .entering = {},
                                              .z = p.z.view(),
                                              .boundary = p.boundary.view(),
                                              .leaving = {states.data(), p.sequences}});
  }
  // q k^T and g v over the triangle; reading the entering state, writing the leaving state.
  count_flops(state, p.tokens() * (p.triangle(2 * kModes) + p.triangle(p.width) + 2 * p.rectangle()));
  count_tokens(state, p.tokens());
}
BENCHMARK(selective_scan_forward)
    ->ArgName("P")
    ->Arg(64)
    ->Arg(28)
    ->Arg(8)
    ->Unit(benchmark::kMillisecond)
    ->MinTime(0.3)
    ->UseRealTime();

void selective_scan_backward(benchmark::State& state) {
  const Problem p(1, 1024, state.range(0));
  const Problem gradient(1, 1024, state.range(0));
  for (auto _ : state) {
    run(stream(), SelectiveScanBackward<float>{.sequences = p.sequences,
                                               .length = p.length,
                                               .width = p.width,
                                               .v = p.v.view(),
                                               .write = p.write.view(),
                                               .read = p.read.view(),
                                               .clock = p.clock.view(),
                                               .modes = p.modes(),
                                               .boundary = p.boundary.view(),
                                               .d_z = p.z.view(),
                                               .d_leaving = {},
                                               .d_v = gradient.v.view(),
                                               .d_write = gradient.write.view(),
                                               .d_read = gradient.read.view(),
                                               .d_clock = gradient.clock.view(),
                                               .d_modes = gradient.modes(),
                                               .d_entering = gradient.state.view()});
  }
  // q k^T again and the gradients of q and k; gradients of g and v; gradients of b, w, the state's part of v, and the
  // entering state.
  count_flops(state, p.tokens() * (3 * p.triangle(2 * kModes) + 2 * p.triangle(p.width) + 4 * p.rectangle()));
  count_tokens(state, p.tokens());
}
BENCHMARK(selective_scan_backward)
    ->ArgName("P")
    ->Arg(64)
    ->Arg(28)
    ->Arg(8)
    ->Unit(benchmark::kMillisecond)
    ->MinTime(0.3)
    ->UseRealTime();

// One token of many sequences: the states come from memory and are read and written once each.
void selective_step(benchmark::State& state) {
  const Problem p(state.range(1), 1, state.range(0));
  const auto states = p.states();
  for (auto _ : state) {
    run(stream(), SelectiveStep<float>{.width = p.width,
                                       .v = p.v.view(),
                                       .write = p.write.view(),
                                       .read = p.read.view(),
                                       .clock = p.clock.view(),
                                       .modes = p.modes(),
                                       .entering = {states.data(), p.sequences},
                                       .leaving = {states.data(), p.sequences},
                                       .z = p.z.view()});
  }
  const auto [data, rows, columns, stride] = p.state.view();
  count_bytes(state, 2.0 * static_cast<double>(rows * columns) * sizeof(float));
  count_tokens(state, p.tokens());
}
BENCHMARK(selective_step)
    ->ArgNames({"P", "sequences"})
    ->Args({64, 1})
    ->Args({64, 1024})
    ->Args({28, 1})
    ->Args({28, 2048})
    ->Unit(benchmark::kMicrosecond)
    ->MinTime(0.3)
    ->UseRealTime();

}  // namespace
}  // namespace essh::bench
