#include "essh/kernels/selective_scan.h"

#include <gtest/gtest.h>

#include <functional>

#include "essh/kernels/reference/mixer.h"
#include "tests/kernels/random_matrix.h"

namespace essh {
namespace {

using reference::Dual;

struct ScanProblem {
  Index sequences, length, channels, modes, width;
  StridedMatrix<double> v, write, read, clock, entering, d_z, d_leaving;
  StridedMatrix<double> decay, frequency, readout_cos, readout_sin, zero_lag;

  ScanProblem(Index b, Index l, Index k, Index m, Index p, std::uint64_t seed)
      : sequences(b),
        length(l),
        channels(k),
        modes(m),
        width(p),
        v(b * l, k * p),
        write(b * l, k * m),
        read(b * l, k * m),
        clock(b * l, k * m),
        entering(b, k * 2 * m * p),
        d_z(b * l, k * p),
        d_leaving(b, k * 2 * m * p),
        decay(k, m),
        frequency(k, m),
        readout_cos(k, m),
        readout_sin(k, m),
        zero_lag(k, m) {
    Rng rng(seed);
    v.normal(rng);
    write.uniform(rng, 0.1, 1.9);
    read.uniform(rng, 0.1, 1.9);
    clock.uniform(rng, 0.001, 0.4);
    entering.normal(rng);
    d_z.normal(rng);
    d_leaving.normal(rng);
    decay.normal(rng, 1.0, -4.0);
    frequency.uniform(rng, -3.0, 3.0);
    readout_cos.normal(rng);
    readout_sin.normal(rng);
    zero_lag.uniform(rng, 0, 1);
  }

  Modes<const double> tables() const {
    return {decay.view, frequency.view, readout_cos.view, readout_sin.view, zero_lag.view};
  }
};

struct Result {
  StridedMatrix<double> z, boundary, leaving;
};

Result forward(cpu::Stream& stream, const ScanProblem& p, double range) {
  const Index state = p.channels * 2 * p.modes * p.width;
  Result r{{p.sequences * p.length, p.channels * p.width},
           {p.sequences * scan_chunks(p.length), state},
           {p.sequences, state}};
  const auto entering = p.entering.rows(), leaving = r.leaving.rows();
  run(stream, SelectiveScanForward<double>{.sequences = p.sequences,
                                           .length = p.length,
                                           .width = p.width,
                                           .v = p.v.view,
                                           .write = p.write.view,
                                           .read = p.read.view,
                                           .clock = p.clock.view,
                                           .modes = p.tables(),
                                           .entering = {entering.data(), p.sequences},
                                           .z = r.z.view,
                                           .boundary = r.boundary.view,
                                           .leaving = {leaving.data(), p.sequences},
                                           .factor_range = range});
  return r;
}

// The reference for one channel of one sequence.
template <class S>
struct ChannelProblem {
  reference::ChannelInput<S> input;
  std::vector<reference::Mode<S>> modes;
  reference::ChannelState<S> state;

  ChannelProblem(const ScanProblem& p, Index b, Index k)
      : state(reference::zero_state<S>(static_cast<std::size_t>(p.modes), static_cast<std::size_t>(p.width))) {
    for (Index t = 0; t < p.length; ++t) {
      const Index r = b * p.length + t;
      std::vector<S> v, w, d, c;
      for (Index i = 0; i < p.width; ++i) v.push_back(p.v.view(r, k * p.width + i));
      for (Index i = 0; i < p.modes; ++i) {
        w.push_back(p.write.view(r, k * p.modes + i));
        d.push_back(p.read.view(r, k * p.modes + i));
        c.push_back(p.clock.view(r, k * p.modes + i));
      }
      input.v.push_back(v);
      input.write.push_back(w);
      input.read.push_back(d);
      input.clock.push_back(c);
    }
    for (Index i = 0; i < p.modes; ++i) {
      modes.push_back({p.decay.view(k, i), p.frequency.view(k, i), p.readout_cos.view(k, i), p.readout_sin.view(k, i),
                       p.zero_lag.view(k, i)});
      for (Index c = 0; c < 2; ++c) {
        for (Index j = 0; j < p.width; ++j) {
          state[static_cast<std::size_t>(i)][static_cast<std::size_t>(c)][static_cast<std::size_t>(j)] =
              p.entering.view(b, ((k * p.modes + i) * 2 + c) * p.width + j);
        }
      }
    }
  }

  // <d_z, z> + <d_leaving, state>: the scalar whose gradient the backward kernel computes.
  S objective(const ScanProblem& p, Index b, Index k) {
    auto final_state = state;
    const auto z = reference::selective_recurrence(input, modes, final_state);
    S sum = 0;
    for (Index t = 0; t < p.length; ++t) {
      for (Index i = 0; i < p.width; ++i) {
        sum += S(p.d_z.view(b * p.length + t, k * p.width + i)) *
               z[static_cast<std::size_t>(t)][static_cast<std::size_t>(i)];
      }
    }
    for (Index i = 0; i < p.modes; ++i) {
      for (Index c = 0; c < 2; ++c) {
        for (Index j = 0; j < p.width; ++j) {
          sum += S(p.d_leaving.view(b, ((k * p.modes + i) * 2 + c) * p.width + j)) *
                 final_state[static_cast<std::size_t>(i)][static_cast<std::size_t>(c)][static_cast<std::size_t>(j)];
        }
      }
    }
    return sum;
  }
};

constexpr double kEverything = 1e9;  // every mode factored
constexpr double kNothing = -1;      // every mode direct
constexpr double kSome = 14;         // some of each at these decays

class SelectiveScan : public ::testing::TestWithParam<std::tuple<Index, double>> {};

TEST_P(SelectiveScan, ChunkedAgreesWithTheRecurrence) {
  const auto [length, range] = GetParam();
  ScanProblem p(2, length, 3, 4, 5, 2333);
  cpu::Stream stream(2);
  const auto result = forward(stream, p, range);
  for (Index b = 0; b < p.sequences; ++b) {
    for (Index k = 0; k < p.channels; ++k) {
      ChannelProblem<double> channel(p, b, k);
      auto state = channel.state;
      const auto z = reference::selective_recurrence(channel.input, channel.modes, state);
      for (Index t = 0; t < length; ++t) {
        for (Index i = 0; i < p.width; ++i) {
          const double exact = z[static_cast<std::size_t>(t)][static_cast<std::size_t>(i)];
          EXPECT_NEAR(result.z.view(b * length + t, k * p.width + i), exact, 1e-13 * std::max(1.0, std::abs(exact)));
        }
      }
      for (Index i = 0; i < 2 * p.modes; ++i) {
        for (Index j = 0; j < p.width; ++j) {
          EXPECT_NEAR(
              result.leaving.view(b, (k * 2 * p.modes + i) * p.width + j),
              state[static_cast<std::size_t>(i / 2)][static_cast<std::size_t>(i % 2)][static_cast<std::size_t>(j)],
              1e-13);
        }
      }
    }
  }
}

TEST_P(SelectiveScan, GradientsAgreeWithDualNumbersAndDifferences) {
  const auto [length, range] = GetParam();
  ScanProblem p(2, length, 2, 3, 2, 77);
  cpu::Stream stream(2);
  const auto result = forward(stream, p, range);
  const Index rows = p.sequences * p.length, state = p.channels * 2 * p.modes * p.width;
  StridedMatrix<double> d_v(rows, p.channels * p.width), d_write(rows, p.channels * p.modes),
      d_read(rows, p.channels * p.modes), d_clock(rows, p.channels * p.modes), d_entering(p.sequences, state);
  StridedMatrix<double> d_decay(p.channels, p.modes), d_frequency(p.channels, p.modes), d_cos(p.channels, p.modes),
      d_sin(p.channels, p.modes), d_lag(p.channels, p.modes);
  run(stream,
      SelectiveScanBackward<double>{.sequences = p.sequences,
                                    .length = p.length,
                                    .width = p.width,
                                    .v = p.v.view,
                                    .write = p.write.view,
                                    .read = p.read.view,
                                    .clock = p.clock.view,
                                    .modes = p.tables(),
                                    .boundary = result.boundary.view,
                                    .d_z = p.d_z.view,
                                    .d_leaving = p.d_leaving.view,
                                    .d_v = d_v.view,
                                    .d_write = d_write.view,
                                    .d_read = d_read.view,
                                    .d_clock = d_clock.view,
                                    .d_modes = {d_decay.view, d_frequency.view, d_cos.view, d_sin.view, d_lag.view},
                                    .d_entering = d_entering.view,
                                    .factor_range = range});

  // Checks one input at a time, selected by a reference into the dual problem.
  const auto check = [&](double analytic, Index b, Index k, const std::function<Dual&(ChannelProblem<Dual>&)>& pick,
                         const char* what) {
    double exact = 0, difference = 0, objective = 0;
    const Index first = b < 0 ? 0 : b, last = b < 0 ? p.sequences : b + 1;
    for (Index sequence = first; sequence < last; ++sequence) {
      ChannelProblem<Dual> channel(p, sequence, k);
      pick(channel).slope = 1;
      const Dual at_point = channel.objective(p, sequence, k);
      exact += at_point.slope;
      objective += std::abs(at_point.value);
      constexpr double kStep = 1e-6;
      const double at = pick(channel).value;
      pick(channel).value = at + kStep;
      difference += channel.objective(p, sequence, k).value / (2 * kStep);
      pick(channel).value = at - kStep;
      difference -= channel.objective(p, sequence, k).value / (2 * kStep);
    }
    const double scale = std::max(1.0, std::abs(exact));
    EXPECT_NEAR(analytic, exact, 1e-12 * scale) << what;
    // A difference quotient has the rounding error of the whole objective.
    EXPECT_NEAR(analytic, difference, 1e-8 * std::max(scale, objective)) << what;
  };
  for (Index k = 0; k < p.channels; ++k) {
    for (Index b = 0; b < p.sequences; ++b) {
      for (Index t = 0; t < length; t += (length > 100 ? 61 : length > 10 ? 7 : 1)) {
        const auto at = static_cast<std::size_t>(t);
        const Index r = b * length + t;
        for (Index i = 0; i < p.width; ++i) {
          check(
              d_v.view(r, k * p.width + i), b, k,
              [=](auto& c) -> Dual& { return c.input.v[at][static_cast<std::size_t>(i)]; }, "v");
        }
        for (Index i = 0; i < p.modes; ++i) {
          const auto mode = static_cast<std::size_t>(i);
          check(
              d_write.view(r, k * p.modes + i), b, k, [=](auto& c) -> Dual& { return c.input.write[at][mode]; },
              "write");
          check(
              d_read.view(r, k * p.modes + i), b, k, [=](auto& c) -> Dual& { return c.input.read[at][mode]; }, "read");
          check(
              d_clock.view(r, k * p.modes + i), b, k, [=](auto& c) -> Dual& { return c.input.clock[at][mode]; },
              "clock");
        }
      }
      for (Index i = 0; i < 2 * p.modes; ++i) {
        for (Index j = 0; j < p.width; ++j) {
          check(
              d_entering.view(b, (k * 2 * p.modes + i) * p.width + j), b, k,
              [=](auto& c) -> Dual& {
                return c.state[static_cast<std::size_t>(i / 2)][static_cast<std::size_t>(i % 2)]
                              [static_cast<std::size_t>(j)];
              },
              "entering");
        }
      }
    }
    for (Index i = 0; i < p.modes; ++i) {
      const auto mode = static_cast<std::size_t>(i);
      check(
          d_decay.view(k, i), -1, k, [=](auto& c) -> Dual& { return c.modes[mode].decay; }, "decay");
      check(
          d_frequency.view(k, i), -1, k, [=](auto& c) -> Dual& { return c.modes[mode].frequency; }, "frequency");
      check(
          d_cos.view(k, i), -1, k, [=](auto& c) -> Dual& { return c.modes[mode].readout_cos; }, "readout_cos");
      check(
          d_sin.view(k, i), -1, k, [=](auto& c) -> Dual& { return c.modes[mode].readout_sin; }, "readout_sin");
      check(
          d_lag.view(k, i), -1, k, [=](auto& c) -> Dual& { return c.modes[mode].zero_lag; }, "zero_lag");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(LengthsAndBranches, SelectiveScan,
                         ::testing::Combine(::testing::Values<Index>(1, 7, 63, 64, 65, 200),
                                            ::testing::Values(kEverything, kNothing, kSome)));

TEST(SelectiveScan, InteractionMatrixAgreesWithTheRecurrence) {
  ScanProblem p(1, 150, 1, 8, 3, 5);
  ChannelProblem<double> channel(p, 0, 0);
  auto state = reference::zero_state<double>(8, 3);
  const auto z = reference::selective_recurrence(channel.input, channel.modes, state);
  const auto g = reference::interaction_matrix(channel.input, channel.modes);
  for (std::size_t t = 0; t < z.size(); ++t) {
    for (std::size_t i = 0; i < 3; ++i) {
      double sum = 0;
      for (std::size_t s = 0; s <= t; ++s) sum += g[t][s] * channel.input.v[s][i];
      EXPECT_NEAR(sum, z[t][i], 1e-13);
    }
  }
}

}  // namespace
}  // namespace essh
