#include "essh/kernels/selective_mix.h"

#include <cstring>

#include "tests/kernels/cuda/twin_matrix.h"

namespace essh {
namespace {

struct MixCase {
  Index sequences, length, channels, modes, width;
};

struct MixProblem {
  MixCase size;
  StridedMatrix<double> v0, write, read, clock, write_bias, read_bias, clock_bias, blend;
  StridedMatrix<double> decay, frequency, readout_cos, readout_sin, zero_lag, entering, z, leaving;
  std::vector<double*> entering_rows, leaving_rows;

  explicit MixProblem(const MixCase& s)
      : size(s),
        v0(s.sequences * s.length, s.channels * s.width, 4),
        write(s.sequences * s.length, s.channels * s.modes, 4),
        read(write),
        clock(write),
        write_bias(1, s.channels * s.modes),
        read_bias(write_bias),
        clock_bias(write_bias),
        blend(1, s.channels),
        decay(s.channels, s.modes),
        frequency(decay),
        readout_cos(decay),
        readout_sin(decay),
        zero_lag(decay),
        entering(s.sequences, s.channels * 2 * s.modes * s.width),
        z(v0),
        leaving(entering),
        entering_rows(entering.rows()),
        leaving_rows(leaving.rows()) {
    Rng rng(77);
    v0.normal(rng);
    for (auto* logits : {&write, &read, &clock}) logits->normal(rng);
    write_bias.normal(rng, 0.3);
    read_bias.normal(rng, 0.3);
    clock_bias.normal(rng, 0.5, -3.0);
    blend.uniform(rng, -0.2, 1.2);
    entering.normal(rng);
    decay.normal(rng, 1.0, -4.0);
    frequency.uniform(rng, -3.0, 3.0);
    readout_cos.normal(rng);
    readout_sin.normal(rng);
    zero_lag.uniform(rng, 0, 1);
  }

  SelectiveMix<double> on_host() {
    return {.sequences = size.sequences,
            .length = size.length,
            .width = size.width,
            .v0 = v0.view,
            .write_logits = write.view,
            .read_logits = read.view,
            .clock_logits = clock.view,
            .write_bias = write_bias.vector(),
            .read_bias = read_bias.vector(),
            .clock_bias = clock_bias.vector(),
            .blend = blend.vector(),
            .eps = 1e-6,
            .modes = {decay.view, frequency.view, readout_cos.view, readout_sin.view, zero_lag.view},
            .entering = {entering_rows.data(), size.sequences},
            .z = z.view,
            .leaving = {leaving_rows.data(), size.sequences}};
  }
};

// The same numbers on the device.
template <class T>
struct Twin {
  MixCase size;
  TwinMatrix<T> v0, write, read, clock, z;
  TwinMatrix<float> write_bias, read_bias, clock_bias, blend, decay, frequency, readout_cos, readout_sin, zero_lag,
      entering, leaving;

  explicit Twin(MixProblem& p)
      : size(p.size),
        v0(p.v0),
        write(p.write),
        read(p.read),
        clock(p.clock),
        z(p.z),
        write_bias(p.write_bias),
        read_bias(p.read_bias),
        clock_bias(p.clock_bias),
        blend(p.blend),
        decay(p.decay),
        frequency(p.frequency),
        readout_cos(p.readout_cos),
        readout_sin(p.readout_sin),
        zero_lag(p.zero_lag),
        entering(p.entering),
        leaving(p.leaving) {}

  SelectiveMix<T> op() const {
    return {.sequences = size.sequences,
            .length = size.length,
            .width = size.width,
            .v0 = v0.view(),
            .write_logits = write.view(),
            .read_logits = read.view(),
            .clock_logits = clock.view(),
            .write_bias = write_bias.vector(),
            .read_bias = read_bias.vector(),
            .clock_bias = clock_bias.vector(),
            .blend = blend.vector(),
            .eps = 1e-6,
            .modes = {decay.view(), frequency.view(), readout_cos.view(), readout_sin.view(), zero_lag.view()},
            .entering = {entering.rows().data, size.sequences},
            .z = z.view(),
            .leaving = leaving.rows()};
  }
};

template <class T>
void check_mix(const MixCase& size) {
  SCOPED_TRACE(::testing::Message() << size.sequences << " x " << size.length << ", " << size.channels << " channels, "
                                    << size.modes << " modes, width " << size.width);
  MixProblem p(size);
  const Twin<T> fused(p), parts(p), settled(p);
  run(gpu(), fused.op());
  auto early = settled.op();
  early.settled = true;
  run(gpu(), early);
  StridedMatrix<double> gate(p.write);
  const TwinMatrix<float> write(gate), read(gate), clock(gate);
  run_parts(gpu(), parts.op(), write.view(), read.view(), clock.view());
  run(host(), p.on_host());
  fused.z.expect_close(p.z, "z");
  fused.leaving.expect_close(p.leaving, "leaving", 1, std::is_same_v<T, BFloat16> ? 8e-3 : 2e-6);
  const auto z = fused.z.download(), early_z = settled.z.download();
  EXPECT_EQ(std::memcmp(z.data(), early_z.data(), z.size() * sizeof(T)), 0);
  // Fused and unfused kernels do the same arithmetic if channels consist of whole groups of four values. A fused step
  // keeps values in float that the unfused kernels pass on in T.
  if (size.width % 4 != 0 || size.length == 1) return;
  const auto a = fused.z.download(), b = parts.z.download();
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(T)), 0);
  const auto c = fused.leaving.download(), d = parts.leaving.download();
  EXPECT_EQ(std::memcmp(c.data(), d.data(), c.size() * sizeof(float)), 0);
}

// States in bf16 are read as they are and written rounded; the outputs are those of wide states.
template <class T>
void check_narrow_states(const MixCase& size) {
  SCOPED_TRACE(::testing::Message() << size.sequences << " x " << size.length << ", " << size.channels << " channels, "
                                    << size.modes << " modes, width " << size.width);
  MixProblem p(size);
  const TwinMatrix<BFloat16> entering(p.entering), leaving(p.entering);  // rounds the host's numbers
  const Twin<T> wide(p), narrow(p);
  run(gpu(), wide.op());
  auto op = narrow.op();
  op.entering = {reinterpret_cast<const float* const*>(entering.rows().data), size.sequences};
  op.leaving = {reinterpret_cast<float* const*>(leaving.rows().data), size.sequences};
  op.narrow_states = true;
  run(gpu(), op);
  const auto a = wide.z.download(), b = narrow.z.download();
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(T)), 0);
  const auto states = wide.leaving.download();
  const auto rounded = leaving.download();
  for (Index r = 0; r < size.sequences; ++r) {
    for (Index c = 0; c < p.entering.view.cols; ++c) {
      const auto i = static_cast<std::size_t>(r * p.entering.view.stride + c);
      ASSERT_EQ(rounded[i].bits, BFloat16(states[i]).bits) << r << ", " << c;
    }
  }
}

template <class T>
class SelectiveMixCuda : public ::testing::Test {};
TYPED_TEST_SUITE(SelectiveMixCuda, TwinTypes);

TYPED_TEST(SelectiveMixCuda, AgreesWithTheCpuAndWithItsParts) {
  ESSH_NEEDS_GPU();
  for (const MixCase& size : {MixCase{2, 200, 7, 8, 28},
                              {1, 65, 32, 8, 64},
                              {2, 64, 3, 8, 16},
                              {1, 63, 5, 8, 8},
                              {1, 100, 3, 5, 24},
                              {1, 130, 2, 12, 40},
                              {2, 77, 3, 8, 27},
                              {1, 1, 2, 8, 64},
                              {5, 1, 32, 8, 64},
                              {3, 1, 7, 5, 24},
                              {2, 1, 3, 8, 27},
                              {2, 1, 2, 12, 40}})
    check_mix<TypeParam>(size);
}

// Steps of one sequence, launched without a wait: each continues where the one before ends.
TYPED_TEST(SelectiveMixCuda, StepsInARowContinueEachOther) {
  ESSH_NEEDS_GPU();
  constexpr int kSteps = 8;
  for (const MixCase& size : {MixCase{1, 1, 2, 8, 64}, {40, 1, 32, 8, 64}, {200, 1, 32, 8, 64}}) {
    MixProblem p(size);
    const Twin<TypeParam> in_a_row(p), apart(p);
    for (const bool waits : {false, true}) {
      auto op = (waits ? apart : in_a_row).op();
      op.leaving = (waits ? apart : in_a_row).entering.rows();
      gpu().wait();
      for (int i = 0; i < kSteps; ++i) {
        run(gpu(), op);
        if (waits) gpu().wait();
      }
    }
    const auto a = in_a_row.entering.download(), b = apart.entering.download();
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0) << size.sequences;
    const auto c = in_a_row.z.download(), d = apart.z.download();
    EXPECT_EQ(std::memcmp(c.data(), d.data(), c.size() * sizeof(TypeParam)), 0) << size.sequences;
  }
}

TYPED_TEST(SelectiveMixCuda, NarrowStatesAreTheRoundedOnes) {
  ESSH_NEEDS_GPU();
  for (const MixCase& size : {MixCase{2, 200, 7, 8, 28},
                              {1, 65, 32, 8, 64},
                              {1, 130, 2, 12, 40},
                              {5, 1, 32, 8, 64},
                              {3, 1, 7, 5, 24},
                              {2, 1, 3, 8, 27},
                              {2, 1, 2, 12, 40}})
    check_narrow_states<TypeParam>(size);
}

}  // namespace
}  // namespace essh
