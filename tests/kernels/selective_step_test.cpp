#include "essh/kernels/reference/mixer.h"
#include "essh/kernels/selective_scan.h"
#include "tests/kernels/kernel_checks.h"

namespace essh {
namespace {

// Decays and frequencies like those of the spectral initialisation: slow modes up to rho = 0.9999 with few rotations,
// fast ones with many; clocks around softplus(-3), modulated by the input.
template <class T>
struct StepProblem {
  Index sequences, length, channels, modes, width;
  StridedMatrix<T> v, write, read, clock;
  StridedMatrix<T> decay, frequency, readout_cos, readout_sin, zero_lag;

  StepProblem(Index b, Index l, Index k, Index m, Index p, double clock_bias = -3)
      : sequences(b),
        length(l),
        channels(k),
        modes(m),
        width(p),
        v(b * l, k * p),
        write(b * l, k * m),
        read(b * l, k * m),
        clock(b * l, k * m),
        decay(k, m),
        frequency(k, m),
        readout_cos(k, m),
        readout_sin(k, m),
        zero_lag(k, m) {
    Rng rng(2048);
    v.normal(rng);
    write.uniform(rng, 0.2, 1.8);
    read.uniform(rng, 0.2, 1.8);
    clock.fill([&] { return reference::softplus(clock_bias + rng.normal()); });
    decay.fill([&] {
      const double gamma = std::pow(10.0, -4 + 3.5 * rng.uniform());  // rho from 0.9999 to 0.73
      return std::log(std::expm1(gamma));
    });
    decay.view(0, 0) = static_cast<T>(std::log(std::expm1(1e-4)));
    frequency.fill([&] { return std::pow(10.0, -3 + 3.4 * rng.uniform()); });
    readout_cos.normal(rng);
    readout_sin.normal(rng);
    zero_lag.uniform(rng, 0.3, 0.7);
  }

  Index state_size() const { return channels * 2 * modes * width; }
  Modes<const T> tables() const {
    return {decay.view, frequency.view, readout_cos.view, readout_sin.view, zero_lag.view};
  }
};

template <class T>
struct StepResult {
  StridedMatrix<T> z, state;
};

template <class T>
StepResult<T> fresh(const StepProblem<T>& p) {
  return {{p.sequences * p.length, p.channels * p.width}, {p.sequences, p.state_size()}};
}

template <class T>
StepResult<T> token_by_token(cpu::Stream& stream, const StepProblem<T>& p) {
  auto result = fresh(p);
  const auto states = result.state.rows();
  for (Index t = 0; t < p.length; ++t) {
    // Token t of every sequence: rows `length` apart.
    const auto at = [&]<class W>(Matrix<W> m) { return Matrix<W>{m.row(t), p.sequences, m.cols, m.stride * p.length}; };
    run(stream, SelectiveStep<T>{.width = p.width,
                                 .v = at(p.v.view),
                                 .write = at(p.write.view),
                                 .read = at(p.read.view),
                                 .clock = at(p.clock.view),
                                 .modes = p.tables(),
                                 .entering = {states.data(), p.sequences},
                                 .leaving = {states.data(), p.sequences},
                                 .z = at(result.z.view)});
  }
  return result;
}

// The chunked pass over pieces of the given lengths; each starts from the previous piece's leaving state.
template <class T>
StepResult<T> piece_by_piece(cpu::Stream& stream, const StepProblem<T>& p, const std::vector<Index>& pieces) {
  auto result = fresh(p);
  Index first = 0;
  for (const Index n : pieces) {
    for (Index b = 0; b < p.sequences; ++b) {
      const Index row = b * p.length + first;
      T* const state = result.state.view.row(b);
      run(stream, SelectiveScanForward<T>{.sequences = 1,
                                          .length = n,
                                          .width = p.width,
                                          .v = p.v.view.middle(row, n),
                                          .write = p.write.view.middle(row, n),
                                          .read = p.read.view.middle(row, n),
                                          .clock = p.clock.view.middle(row, n),
                                          .modes = p.tables(),
                                          .entering = {&state, 1},
                                          .z = result.z.view.middle(row, n),
                                          .boundary = {},
                                          .leaving = {&state, 1}});
    }
    first += n;
  }
  EXPECT_EQ(first, p.length);
  return result;
}

template <class T>
StepResult<T> whole(cpu::Stream& stream, const StepProblem<T>& p) {
  auto result = fresh(p);
  const auto states = result.state.rows();
  run(stream, SelectiveScanForward<T>{.sequences = p.sequences,
                                      .length = p.length,
                                      .width = p.width,
                                      .v = p.v.view,
                                      .write = p.write.view,
                                      .read = p.read.view,
                                      .clock = p.clock.view,
                                      .modes = p.tables(),
                                      .entering = {},
                                      .z = result.z.view,
                                      .boundary = {},
                                      .leaving = {states.data(), p.sequences}});
  return result;
}

// Largest distance between two rows of one channel (or one mode's state), relative to the row's norm.
template <class T>
double relative_error(const StridedMatrix<T>& x, const StridedMatrix<T>& exact, Index block) {
  double worst = 0;
  for (Index r = 0; r < x.view.rows; ++r) {
    for (Index first = 0; first < x.view.cols; first += block) {
      double distance = 0, size = 0;
      for (Index c = first; c < first + block; ++c) {
        const auto a = static_cast<double>(x.view(r, c)), b = static_cast<double>(exact.view(r, c));
        distance += (a - b) * (a - b);
        size += b * b;
      }
      worst = std::max(worst, std::sqrt(distance / size));
    }
  }
  EXPECT_TRUE(x.gap_is_intact());
  return worst;
}

template <class T>
constexpr double kAgreement = 1e-5;
template <>
constexpr double kAgreement<double> = 1e-12;

template <class T>
class SelectiveStepTest : public ::testing::Test {};
TYPED_TEST_SUITE(SelectiveStepTest, FloatTypes);

TYPED_TEST(SelectiveStepTest, AgreesWithTheRecurrence) {
  using T = TypeParam;
  cpu::Stream stream(2);
  for (const Index width : {1, 5, 28, 64}) {
    const StepProblem<T> p(1, 9, 2, 3, width);
    const auto stepped = token_by_token(stream, p);
    for (Index k = 0; k < p.channels; ++k) {
      reference::ChannelInput<double> input;
      std::vector<reference::Mode<double>> modes;
      for (Index t = 0; t < p.length; ++t) {
        input.v.push_back(p.v.row(t, k * width, width));
        input.write.push_back(p.write.row(t, k * p.modes, p.modes));
        input.read.push_back(p.read.row(t, k * p.modes, p.modes));
        input.clock.push_back(p.clock.row(t, k * p.modes, p.modes));
      }
      const auto number = [&](const StridedMatrix<T>& table, Index i) { return static_cast<double>(table.view(k, i)); };
      for (Index i = 0; i < p.modes; ++i) {
        modes.push_back({number(p.decay, i), number(p.frequency, i), number(p.readout_cos, i), number(p.readout_sin, i),
                         number(p.zero_lag, i)});
      }
      auto state = reference::zero_state<double>(static_cast<std::size_t>(p.modes), static_cast<std::size_t>(width));
      const auto z = reference::selective_recurrence(input, modes, state);
      for (Index t = 0; t < p.length; ++t) {
        for (Index i = 0; i < width; ++i) {
          expect_close(stepped.z.view(t, k * width + i), z[static_cast<std::size_t>(t)][static_cast<std::size_t>(i)],
                       "z", 2);
        }
      }
      for (Index i = 0; i < 2 * p.modes; ++i) {
        for (Index j = 0; j < width; ++j) {
          expect_close(
              stepped.state.view(0, (k * 2 * p.modes + i) * width + j),
              state[static_cast<std::size_t>(i / 2)][static_cast<std::size_t>(i % 2)][static_cast<std::size_t>(j)],
              "state");
        }
      }
    }
  }
}

TYPED_TEST(SelectiveStepTest, TokenByTokenAgreesWithTheChunkedPassOver4096Positions) {
  using T = TypeParam;
  cpu::Stream stream(1);
  // Clocks of the initialisation, and clocks that training has almost stopped.
  for (const double clock_bias : {-3.0, -8.0}) {
    const StepProblem<T> p(1, 4096, 4, 8, 8, clock_bias);
    const auto stepped = token_by_token(stream, p), chunked = whole(stream, p);
    EXPECT_LE(relative_error(stepped.z, chunked.z, p.channels * p.width), kAgreement<T>) << clock_bias;
    EXPECT_LE(relative_error(stepped.state, chunked.state, 2 * p.width), kAgreement<T>) << clock_bias;
  }
}

TYPED_TEST(SelectiveStepTest, AnySplitOfTheTokensGivesTheWhole) {
  using T = TypeParam;
  cpu::Stream stream(1);
  const StepProblem<T> p(2, 300, 3, 4, 5);
  const auto expected = whole(stream, p);
  const std::vector<std::vector<Index>> splits = {
      {300}, {1, 299}, {64, 64, 64, 64, 44}, {63, 65, 172}, {100, 1, 1, 98, 0, 100}, std::vector<Index>(300, 1)};
  for (const auto& pieces : splits) {
    const auto result = piece_by_piece(stream, p, pieces);
    EXPECT_LE(relative_error(result.z, expected.z, p.channels * p.width), kAgreement<T>) << pieces.size() << " pieces";
    EXPECT_LE(relative_error(result.state, expected.state, 2 * p.width), kAgreement<T>) << pieces.size() << " pieces";
  }
}

TYPED_TEST(SelectiveStepTest, NothingIsWrittenForNoSequencesOrNoTokens) {
  using T = TypeParam;
  cpu::Stream stream(2);
  const StepProblem<T> none(0, 1, 2, 3, 4);
  token_by_token(stream, none);
  const StepProblem<T> no_tokens(2, 0, 2, 3, 4);
  auto result = fresh(no_tokens);
  Rng rng(1);
  result.state.normal(rng);
  const StridedMatrix<T> before = result.state;
  const auto entering = before.rows(), leaving = result.state.rows();
  run(stream, SelectiveScanForward<T>{.sequences = 2,
                                      .length = 0,
                                      .width = 4,
                                      .v = no_tokens.v.view,
                                      .write = no_tokens.write.view,
                                      .read = no_tokens.read.view,
                                      .clock = no_tokens.clock.view,
                                      .modes = no_tokens.tables(),
                                      .entering = {entering.data(), 2},
                                      .z = result.z.view,
                                      .boundary = {},
                                      .leaving = {leaving.data(), 2}});
  for (Index b = 0; b < 2; ++b) {
    for (Index i = 0; i < no_tokens.state_size(); ++i) EXPECT_EQ(result.state.view(b, i), before.view(b, i));
  }
}

TYPED_TEST(SelectiveStepTest, ASequenceHasTheSameBitsAloneAndInABatch) {
  using T = TypeParam;
  cpu::Stream stream(2);
  const StepProblem<T> p(3, 70, 3, 4, 5);
  const auto together = whole(stream, p);
  const auto alone = piece_by_piece(stream, p, {70});
  EXPECT_EQ(relative_error(alone.z, together.z, p.width), 0);
  EXPECT_EQ(relative_error(alone.state, together.state, p.width), 0);
}

// All sequences of a problem by `length` tokens: as single steps, or as a scan.
template <class T>
void advance(cpu::Stream& stream, const StepProblem<T>& p, Index length, const std::vector<T*>& from,
             const std::vector<T*>& to, Matrix<T> out, bool narrow_states = false) {
  const Vector<const T* const> entering{from.data(), std::ssize(from)};
  const Vector<T* const> leaving{to.data(), std::ssize(to)};
  if (length == 1) {
    run(stream, SelectiveStep<T>{.width = p.width,
                                 .v = p.v.view,
                                 .write = p.write.view,
                                 .read = p.read.view,
                                 .clock = p.clock.view,
                                 .modes = p.tables(),
                                 .entering = entering,
                                 .leaving = leaving,
                                 .z = out,
                                 .narrow_states = narrow_states});
  } else {
    run(stream, SelectiveScanForward<T>{.sequences = std::ssize(from),
                                        .length = length,
                                        .width = p.width,
                                        .v = p.v.view,
                                        .write = p.write.view,
                                        .read = p.read.view,
                                        .clock = p.clock.view,
                                        .modes = p.tables(),
                                        .entering = entering,
                                        .z = out,
                                        .boundary = {},
                                        .leaving = leaving,
                                        .narrow_states = narrow_states});
  }
}

// States anywhere in memory, with the entering ones kept or overwritten: one token, and the chunked pass over 70.
TYPED_TEST(SelectiveStepTest, StatesLieAnywhereAndMayBeKept) {
  using T = TypeParam;
  cpu::Stream stream(2);
  for (const Index length : {1, 70}) {
    const StepProblem<T> p(8, length, 3, 4, 5);
    Rng rng(6);
    StridedMatrix<T> entering(8, p.state_size()), kept = entering.normal(rng), in_place = entering, leaving(entering);
    StridedMatrix<T> z(p.v.view.rows, p.v.view.cols), z_in_place(z);
    const auto mix = [&](const std::vector<T*>& from, const std::vector<T*>& to, Matrix<T> out) {
      advance(stream, p, length, from, to, out);
    };
    mix(in_place.rows(), in_place.rows(), z_in_place.view);
    auto backwards = leaving.rows();
    std::reverse(backwards.begin(), backwards.end());
    mix(entering.rows(), backwards, z.view);
    EXPECT_EQ(relative_error(entering, kept, p.width), 0);
    EXPECT_EQ(relative_error(z, z_in_place, p.width), 0);
    EXPECT_TRUE(leaving.gap_is_intact() && in_place.gap_is_intact());
    for (Index b = 0; b < 8; ++b) {
      for (Index i = 0; i < p.state_size(); ++i) EXPECT_EQ(leaving.view(7 - b, i), in_place.view(b, i));
    }
  }
}

// States in bf16 are read as they are and written rounded, in place or not; the outputs are those of wide states.
TYPED_TEST(SelectiveStepTest, NarrowStatesAreTheRoundedOnes) {
  using T = TypeParam;
  cpu::Stream stream(2);
  for (const Index length : {1, 70}) {
    const StepProblem<T> p(3, length, 3, 4, 5);
    Rng rng(6);
    StridedMatrix<T> wide(3, p.state_size()), z(p.v.view.rows, p.v.view.cols), narrow_z(z);
    std::vector<std::vector<BFloat16>> narrow(3), kept(3, std::vector<BFloat16>(wide.view.cols));
    wide.fill([&] { return static_cast<double>(static_cast<float>(BFloat16(static_cast<float>(rng.normal())))); });
    for (Index b = 0; b < 3; ++b) {
      for (Index i = 0; i < p.state_size(); ++i)
        narrow[static_cast<std::size_t>(b)].push_back(BFloat16(static_cast<float>(wide.view(b, i))));
    }
    const auto mix = [&](const std::vector<T*>& from, const std::vector<T*>& to, Matrix<T> out, bool in_bf16) {
      advance(stream, p, length, from, to, out, in_bf16);
    };
    const auto pointers = [](std::vector<std::vector<BFloat16>>& states) {
      std::vector<T*> all;
      for (auto& state : states) all.push_back(reinterpret_cast<T*>(state.data()));
      return all;
    };
    mix(pointers(narrow), pointers(kept), narrow_z.view, true);
    mix(pointers(narrow), pointers(narrow), z.view, true);
    EXPECT_EQ(relative_error(narrow_z, z, p.width), 0);
    mix(wide.rows(), wide.rows(), z.view, false);
    EXPECT_EQ(relative_error(narrow_z, z, p.width), 0);
    for (Index b = 0; b < 3; ++b) {
      for (Index i = 0; i < p.state_size(); ++i) {
        const auto rounded = BFloat16(static_cast<float>(wide.view(b, i))).bits;
        EXPECT_EQ(narrow[static_cast<std::size_t>(b)][static_cast<std::size_t>(i)].bits, rounded);
        EXPECT_EQ(kept[static_cast<std::size_t>(b)][static_cast<std::size_t>(i)].bits, rounded);
      }
    }
  }
}

TYPED_TEST(SelectiveStepTest, BitsDoNotDependOnTheTeam) {
  using T = TypeParam;
  const StepProblem<T> p(2, 130, 3, 4, 5), few_tokens(2, 10, 3, 4, 5);
  expect_same_bits_for_any_team([&](cpu::Stream& stream) {
    const auto stepped = token_by_token(stream, few_tokens), chunked = whole(stream, p);
    Rng rng(9);
    StridedMatrix<T> d_z(p.v.view.rows, p.v.view.cols),
        d_v = d_z, d_write = p.write, d_read = p.write, d_clock = p.write, d_decay = p.decay, d_frequency = p.decay,
        d_cos = p.decay, d_sin = p.decay, d_lag = p.decay,
        boundary(p.sequences * scan_chunks(p.length), p.state_size()), d_entering(p.sequences, p.state_size());
    d_z.normal(rng);
    boundary.normal(rng);
    run(stream,
        SelectiveScanBackward<T>{.sequences = p.sequences,
                                 .length = p.length,
                                 .width = p.width,
                                 .v = p.v.view,
                                 .write = p.write.view,
                                 .read = p.read.view,
                                 .clock = p.clock.view,
                                 .modes = p.tables(),
                                 .boundary = boundary.view,
                                 .d_z = d_z.view,
                                 .d_leaving = {},
                                 .d_v = d_v.view,
                                 .d_write = d_write.view,
                                 .d_read = d_read.view,
                                 .d_clock = d_clock.view,
                                 .d_modes = {d_decay.view, d_frequency.view, d_cos.view, d_sin.view, d_lag.view},
                                 .d_entering = d_entering.view});
    return std::vector{stepped.z, stepped.state, chunked.z,   chunked.state, d_v,   d_write, d_read,
                       d_clock,   d_decay,       d_frequency, d_cos,         d_sin, d_lag,   d_entering};
  });
}

}  // namespace
}  // namespace essh
