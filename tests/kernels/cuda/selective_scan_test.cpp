#include "essh/kernels/selective_scan.h"

#include <cstring>

#include "tests/kernels/cuda/twin_matrix.h"

namespace essh {
namespace {

struct ScanCase {
  Index sequences, length, channels, modes, width;
  double clock = 0.4;  // largest
  double range = admitted_decay<float>();
};

// Inputs, outputs and gradients of one scan on the host.
struct ScanProblem {
  ScanCase size;
  StridedMatrix<double> v, write, read, clock, entering, d_z, d_leaving;
  StridedMatrix<double> decay, frequency, readout_cos, readout_sin, zero_lag;
  StridedMatrix<double> z, boundary, leaving, d_v, d_write, d_read, d_clock, d_entering;
  StridedMatrix<double> d_decay, d_frequency, d_readout_cos, d_readout_sin, d_zero_lag;

  explicit ScanProblem(const ScanCase& s)
      : size(s),
        v(s.sequences * s.length, s.channels * s.width, 4),
        write(s.sequences * s.length, s.channels * s.modes),
        read(write),
        clock(write),
        entering(s.sequences, s.channels * 2 * s.modes * s.width),
        d_z(v),
        d_leaving(entering),
        decay(s.channels, s.modes),
        frequency(decay),
        readout_cos(decay),
        readout_sin(decay),
        zero_lag(decay),
        z(v),
        boundary(s.sequences * scan_chunks(s.length), entering.view.cols),
        leaving(entering),
        d_v(v),
        d_write(write),
        d_read(write),
        d_clock(write),
        d_entering(entering),
        d_decay(decay),
        d_frequency(decay),
        d_readout_cos(decay),
        d_readout_sin(decay),
        d_zero_lag(decay) {
    Rng rng(2333);
    v.normal(rng);
    write.uniform(rng, 0.1, 1.9);
    read.uniform(rng, 0.1, 1.9);
    clock.uniform(rng, 0.001, s.clock);
    entering.normal(rng);
    d_z.normal(rng);
    d_leaving.normal(rng);
    decay.normal(rng, 1.0, -4.0);
    frequency.uniform(rng, -3.0, 3.0);
    readout_cos.normal(rng);
    readout_sin.normal(rng);
    zero_lag.uniform(rng, 0, 1);
  }
};

// The same on the device; compares everything.
template <class T>
void check_scan(const ScanCase& size) {
  ScanProblem p(size);
  const TwinMatrix<T> v(p.v), d_z(p.d_z), z(p.z), d_v(p.d_v);
  const TwinMatrix<float> write(p.write), read(p.read), clock(p.clock), entering(p.entering), d_leaving(p.d_leaving),
      decay(p.decay), frequency(p.frequency), readout_cos(p.readout_cos), readout_sin(p.readout_sin),
      zero_lag(p.zero_lag), boundary(p.boundary), leaving(p.leaving), d_write(p.d_write), d_read(p.d_read),
      d_clock(p.d_clock), d_entering(p.d_entering), d_decay(p.d_decay), d_frequency(p.d_frequency),
      d_readout_cos(p.d_readout_cos), d_readout_sin(p.d_readout_sin), d_zero_lag(p.d_zero_lag);
  const auto forward = [&]<class N>(auto& stream, N, const auto&... m) {
    const auto list = std::tie(m...);
    run(stream, SelectiveScanForward<N>{.sequences = size.sequences,
                                        .length = size.length,
                                        .width = size.width,
                                        .v = std::get<0>(list),
                                        .write = std::get<1>(list),
                                        .read = std::get<2>(list),
                                        .clock = std::get<3>(list),
                                        .modes = {std::get<4>(list), std::get<5>(list), std::get<6>(list),
                                                  std::get<7>(list), std::get<8>(list)},
                                        .entering = {std::get<9>(list).data, size.sequences},
                                        .z = std::get<10>(list),
                                        .boundary = std::get<11>(list),
                                        .leaving = std::get<12>(list),
                                        .factor_range = size.range});
  };
  forward(gpu(), T{}, v.view(), write.view(), read.view(), clock.view(), decay.view(), frequency.view(),
          readout_cos.view(), readout_sin.view(), zero_lag.view(), entering.rows(), z.view(), boundary.view(),
          leaving.rows());
  auto host_entering = p.entering.rows(), host_leaving = p.leaving.rows();
  forward(host(), double{}, p.v.view, p.write.view, p.read.view, p.clock.view, p.decay.view, p.frequency.view,
          p.readout_cos.view, p.readout_sin.view, p.zero_lag.view,
          Vector<double*>{host_entering.data(), size.sequences}, p.z.view, p.boundary.view,
          Vector<double*>{host_leaving.data(), size.sequences});
  // bf16 rounds the outputs; sums and states are float32, and 16 bits of every factor are kept.
  constexpr bool kRounded = std::is_same_v<T, BFloat16>;
  const double wide = kRounded ? 1e-4 : 1e-6;
  z.expect_close(p.z, "z");
  boundary.expect_close(p.boundary, "boundary", 1, wide);
  leaving.expect_close(p.leaving, "leaving", 1, wide);
  const auto backward = [&]<class N>(auto& stream, N, const auto&... m) {
    const auto l = std::tie(m...);
    run(stream, SelectiveScanBackward<N>{
                    .sequences = size.sequences,
                    .length = size.length,
                    .width = size.width,
                    .v = std::get<0>(l),
                    .write = std::get<1>(l),
                    .read = std::get<2>(l),
                    .clock = std::get<3>(l),
                    .modes = {std::get<4>(l), std::get<5>(l), std::get<6>(l), std::get<7>(l), std::get<8>(l)},
                    .boundary = std::get<9>(l),
                    .d_z = std::get<10>(l),
                    .d_leaving = std::get<11>(l),
                    .d_v = std::get<12>(l),
                    .d_write = std::get<13>(l),
                    .d_read = std::get<14>(l),
                    .d_clock = std::get<15>(l),
                    .d_modes = {std::get<16>(l), std::get<17>(l), std::get<18>(l), std::get<19>(l), std::get<20>(l)},
                    .d_entering = std::get<21>(l),
                    .factor_range = size.range});
  };
  backward(gpu(), T{}, v.view(), write.view(), read.view(), clock.view(), decay.view(), frequency.view(),
           readout_cos.view(), readout_sin.view(), zero_lag.view(), boundary.view(), d_z.view(), d_leaving.view(),
           d_v.view(), d_write.view(), d_read.view(), d_clock.view(), d_decay.view(), d_frequency.view(),
           d_readout_cos.view(), d_readout_sin.view(), d_zero_lag.view(), d_entering.view());
  backward(host(), double{}, p.v.view, p.write.view, p.read.view, p.clock.view, p.decay.view, p.frequency.view,
           p.readout_cos.view, p.readout_sin.view, p.zero_lag.view, p.boundary.view, p.d_z.view, p.d_leaving.view,
           p.d_v.view, p.d_write.view, p.d_read.view, p.d_clock.view, p.d_decay.view, p.d_frequency.view,
           p.d_readout_cos.view, p.d_readout_sin.view, p.d_zero_lag.view, p.d_entering.view);
  d_v.expect_close(p.d_v, "d_v");
  d_write.expect_close(p.d_write, "d_write", 2, wide);
  d_read.expect_close(p.d_read, "d_read", 2, wide);
  d_clock.expect_close(p.d_clock, "d_clock", 4, wide);
  d_entering.expect_close(p.d_entering, "d_entering", 2, wide);
  d_decay.expect_close(p.d_decay, "d_decay", 8, wide);
  d_frequency.expect_close(p.d_frequency, "d_frequency", 8, wide);
  d_readout_cos.expect_close(p.d_readout_cos, "d_readout_cos", 8, wide);
  d_readout_sin.expect_close(p.d_readout_sin, "d_readout_sin", 8, wide);
  d_zero_lag.expect_close(p.d_zero_lag, "d_zero_lag", 8, wide);
}

template <class T>
class SelectiveScanCuda : public ::testing::Test {};
TYPED_TEST_SUITE(SelectiveScanCuda, TwinTypes);

TYPED_TEST(SelectiveScanCuda, AgreesWithTheCpuAtAnyLength) {
  ESSH_NEEDS_GPU();
  for (const Index length : {1, 63, 64, 65, 200, 2048, 5000}) {
    if (length > 200 && every_nth_case() > 1) continue;  // more chunks of the same kernels
    SCOPED_TRACE(length);
    check_scan<TypeParam>({.sequences = 2, .length = length, .channels = 3, .modes = 8, .width = 28});
  }
}

TYPED_TEST(SelectiveScanCuda, AgreesWithTheCpuAtAnyWidth) {
  ESSH_NEEDS_GPU();
  for (const Index width : {1, 8, 15, 32, 64, 100, 128}) {
    SCOPED_TRACE(width);
    check_scan<TypeParam>({.sequences = 2, .length = 150, .channels = 3, .modes = 8, .width = width});
  }
}

TYPED_TEST(SelectiveScanCuda, AgreesWithTheCpuWithAnyModes) {
  ESSH_NEEDS_GPU();
  for (const Index modes : {1, 4, 7, 12, 16}) {
    SCOPED_TRACE(modes);
    check_scan<TypeParam>({.sequences = 1, .length = 150, .channels = 2, .modes = modes, .width = 28});
  }
}

// Fast clocks: some or all modes are direct.
TYPED_TEST(SelectiveScanCuda, AgreesWithTheCpuWhenPairsAreSummed) {
  ESSH_NEEDS_GPU();
  check_scan<TypeParam>({.sequences = 2, .length = 150, .channels = 3, .modes = 8, .width = 28, .range = 14});
  check_scan<TypeParam>({.sequences = 2, .length = 150, .channels = 3, .modes = 8, .width = 28, .range = -1});
  check_scan<TypeParam>({.sequences = 2, .length = 150, .channels = 3, .modes = 8, .width = 28, .clock = 9});
}

TYPED_TEST(SelectiveScanCuda, StepAgreesWithTheCpu) {
  ESSH_NEEDS_GPU();
  using T = TypeParam;
  ScanProblem p({.sequences = 5, .length = 1, .channels = 3, .modes = 8, .width = 28});
  const TwinMatrix<T> v(p.v), z(p.z), z_in_place(p.z);
  const TwinMatrix<float> write(p.write), read(p.read), clock(p.clock), entering(p.entering), in_place(p.entering),
      leaving(p.leaving), decay(p.decay), frequency(p.frequency), readout_cos(p.readout_cos),
      readout_sin(p.readout_sin), zero_lag(p.zero_lag);
  const auto step = [&](const TwinMatrix<float>& from, const TwinMatrix<float>& to, const TwinMatrix<T>& out) {
    run(gpu(), SelectiveStep<T>{
                   .width = 28,
                   .v = v.view(),
                   .write = write.view(),
                   .read = read.view(),
                   .clock = clock.view(),
                   .modes = {decay.view(), frequency.view(), readout_cos.view(), readout_sin.view(), zero_lag.view()},
                   .entering = {from.rows().data, 5},
                   .leaving = to.rows(),
                   .z = out.view()});
  };
  step(entering, leaving, z);
  step(in_place, in_place, z_in_place);
  entering.expect_close(p.entering, "the state that is kept", 0);
  const auto host_entering = p.entering.rows(), host_leaving = p.leaving.rows();
  run(host(), SelectiveStep<double>{
                  .width = 28,
                  .v = p.v.view,
                  .write = p.write.view,
                  .read = p.read.view,
                  .clock = p.clock.view,
                  .modes = {p.decay.view, p.frequency.view, p.readout_cos.view, p.readout_sin.view, p.zero_lag.view},
                  .entering = {host_entering.data(), 5},
                  .leaving = {host_leaving.data(), 5},
                  .z = p.z.view});
  for (const auto* result : {&z, &z_in_place}) result->expect_close(p.z, "z");
  for (const auto* state : {&leaving, &in_place}) state->expect_close(p.leaving, "state", 1, 1e-6);
}

// Outputs of a sequence and its state after 150 tokens, alone and as the last of eight.
TYPED_TEST(SelectiveScanCuda, BitsDoNotDependOnOtherSequences) {
  ESSH_NEEDS_GPU();
  using T = TypeParam;
  constexpr Index kLength = 150, kSequences = 8;
  ScanProblem p({.sequences = kSequences, .length = kLength, .channels = 3, .modes = 8, .width = 28});
  const TwinMatrix<T> v(p.v), z(p.z), z_alone(p.z);
  const TwinMatrix<float> write(p.write), read(p.read), clock(p.clock), entering(p.entering), leaving(p.leaving),
      leaving_alone(p.leaving), decay(p.decay), frequency(p.frequency), readout_cos(p.readout_cos),
      readout_sin(p.readout_sin), zero_lag(p.zero_lag);
  const auto scan = [&](Index first, const TwinMatrix<T>& out, const TwinMatrix<float>& state) {
    const Index count = kSequences - first;
    const auto tokens = [&](const auto& m) { return m.view().middle(first * kLength, count * kLength); };
    run(gpu(), SelectiveScanForward<T>{
                   .sequences = count,
                   .length = kLength,
                   .width = 28,
                   .v = tokens(v),
                   .write = tokens(write),
                   .read = tokens(read),
                   .clock = tokens(clock),
                   .modes = {decay.view(), frequency.view(), readout_cos.view(), readout_sin.view(), zero_lag.view()},
                   .entering = {entering.rows().data + first, count},
                   .z = tokens(out),
                   .boundary = {},
                   .leaving = {state.rows().data + first, count}});
  };
  scan(0, z, leaving);
  scan(kSequences - 1, z_alone, leaving_alone);
  const auto last = [](const auto& m, Index rows) {
    const auto all = m.download();
    return std::vector(all.end() - rows * m.view().stride, all.end());
  };
  const auto expect_same = [](const auto& a, const auto& b) {
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])), 0);
  };
  expect_same(last(z, kLength), last(z_alone, kLength));
  expect_same(last(leaving, 1), last(leaving_alone, 1));
}

}  // namespace
}  // namespace essh
