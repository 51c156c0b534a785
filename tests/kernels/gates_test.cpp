#include "essh/kernels/gates.h"

#include "essh/kernels/reference/gates.h"
#include "tests/kernels/kernel_checks.h"

namespace essh {
namespace {

using reference::Dual;

template <class T>
class Gates : public ::testing::Test {};
TYPED_TEST_SUITE(Gates, FloatTypes);

template <class T>
struct GatesProblem {
  StridedMatrix<T> write, read, clock, write_bias, read_bias, clock_bias;

  GatesProblem(Index rows, Index columns)
      : write(rows, columns),
        read(rows, columns),
        clock(rows, columns),
        write_bias(1, columns),
        read_bias(1, columns),
        clock_bias(1, columns) {
    Rng rng(31);
    write.normal(rng, 3);
    read.normal(rng, 3);
    clock.normal(rng, 2);
    write_bias.normal(rng);
    read_bias.normal(rng);
    clock_bias.normal(rng, 1, -3);
  }
  void forward(cpu::Stream& stream) const {
    run(stream, GatesForward<T>{write.view, read.view, clock.view, write_bias.vector(), read_bias.vector(),
                                clock_bias.vector(), write.view, read.view, clock.view});
  }
};

template <class T>
double number(T value) {
  return static_cast<double>(value);
}

TYPED_TEST(Gates, ForwardAgreesWithTheDefinition) {
  using T = TypeParam;
  cpu::Stream stream(2);
  for (const Index rows : {0, 1, 5}) {
    for (const Index columns : {1, 15, 16, 40}) {
      const GatesProblem<T> logits(rows, columns);
      const GatesProblem<T> gates = logits;
      gates.forward(stream);
      EXPECT_TRUE(gates.write.gap_is_intact() && gates.read.gap_is_intact() && gates.clock.gap_is_intact());
      for (Index r = 0; r < rows; ++r) {
        for (Index c = 0; c < columns; ++c) {
          const auto at = [&](const StridedMatrix<T>& m, const StridedMatrix<T>& bias) {
            return std::pair{number(m.view(r, c)), number(bias.view(0, c))};
          };
          const auto [w, wb] = at(logits.write, logits.write_bias);
          const auto [d, db] = at(logits.read, logits.read_bias);
          const auto [t, tb] = at(logits.clock, logits.clock_bias);
          expect_close(gates.write.view(r, c), reference::gate(w, wb), "write");
          expect_close(gates.read.view(r, c), reference::gate(d, db), "read");
          expect_close(gates.clock.view(r, c), reference::clock(t, tb), "clock");
        }
      }
    }
  }
}

TYPED_TEST(Gates, FarLogitsSaturate) {
  using T = TypeParam;
  cpu::Stream stream(1);
  for (const double far : {200.0, 1e4, 1e30}) {
    StridedMatrix<T> write(1, 2), read(1, 2), clock(1, 2), bias(1, 2);
    for (auto* logits : {&write, &read, &clock}) {
      logits->view(0, 0) = static_cast<T>(far);
      logits->view(0, 1) = static_cast<T>(-far);
    }
    run(stream, GatesForward<T>{write.view, read.view, clock.view, bias.vector(), bias.vector(), bias.vector(),
                                write.view, read.view, clock.view});
    EXPECT_EQ(write.view(0, 0), T(2));
    EXPECT_NEAR(number(write.view(0, 1)), 0, 1e-80);
    EXPECT_EQ(read.view(0, 0), T(2));
    EXPECT_NEAR(number(read.view(0, 1)), 0, 1e-80);
    EXPECT_EQ(clock.view(0, 0), static_cast<T>(far));
    EXPECT_NEAR(number(clock.view(0, 1)), 0, 1e-80);
  }
}

TYPED_TEST(Gates, GradientsAgreeWithDualNumbers) {
  using T = TypeParam;
  cpu::Stream stream(2);
  const Index rows = 3, columns = 5;
  const GatesProblem<T> logits(rows, columns);
  const GatesProblem<T> gates = logits;
  gates.forward(stream);
  Rng rng(8);
  StridedMatrix<T> d_write(rows, columns), d_read(rows, columns), d_clock(rows, columns), d_write_bias(1, columns),
      d_read_bias(1, columns), d_clock_bias(1, columns);
  for (auto* matrix : {&d_write, &d_read, &d_clock, &d_write_bias, &d_read_bias, &d_clock_bias}) matrix->normal(rng);
  struct Case {
    const StridedMatrix<T>&logits, &bias, d_gate, d_bias_before;
    StridedMatrix<T>&d_logits, &d_bias;
    Dual (*function)(Dual, Dual);
    const char* name;
  };
  const Case cases[] = {
      {logits.write, logits.write_bias, d_write, d_write_bias, d_write, d_write_bias, reference::gate<Dual>, "write"},
      {logits.read, logits.read_bias, d_read, d_read_bias, d_read, d_read_bias, reference::gate<Dual>, "read"},
      {logits.clock, logits.clock_bias, d_clock, d_clock_bias, d_clock, d_clock_bias, reference::clock<Dual>, "clock"}};
  run(stream, GatesBackward<T>{gates.write.view, gates.read.view, gates.clock.view, d_write.view, d_read.view,
                               d_clock.view, d_write.view, d_read.view, d_clock.view, d_write_bias.vector(),
                               d_read_bias.vector(), d_clock_bias.vector()});
  for (const Case& one : cases) {
    EXPECT_TRUE(one.d_logits.gap_is_intact() && one.d_bias.gap_is_intact());
    for (Index c = 0; c < columns; ++c) {
      Dual bias = number(one.bias.view(0, c));
      std::vector<Dual> column;
      for (Index r = 0; r < rows; ++r) column.push_back(number(one.logits.view(r, c)));
      const auto objective = [&] {
        Dual sum = 0;
        for (Index r = 0; r < rows; ++r)
          sum += Dual(number(one.d_gate.view(r, c))) * one.function(column[static_cast<std::size_t>(r)], bias);
        return sum;
      };
      for (Index r = 0; r < rows; ++r)
        expect_gradient(one.d_logits.view(r, c), column[static_cast<std::size_t>(r)], objective, one.name);
      expect_gradient(one.d_bias.view(0, c) - one.d_bias_before.view(0, c), bias, objective, one.name);
    }
  }
}

// softplus' from the gate alone: 1 - e^{-clock} must not cancel when the clock is slow.
TYPED_TEST(Gates, TheGradientOfASlowClockKeepsItsDigits) {
  using T = TypeParam;
  cpu::Stream stream(1);
  StridedMatrix<T> one(1, 3), clock(1, 3), d_one(1, 3), d_clock(1, 3), d_bias(1, 3);
  for (Index c = 0; c < 3; ++c) clock.view(0, c) = static_cast<T>(std::pow(10.0, -3.0 * static_cast<double>(c + 1)));
  d_clock.fill([] { return 1.0; });
  StridedMatrix<T> d_two = d_one;
  run(stream, GatesBackward<T>{one.view, one.view, clock.view, d_one.view, d_two.view, d_clock.view, d_one.view,
                               d_two.view, d_clock.view, d_bias.vector(), d_bias.vector(), d_bias.vector()});
  for (Index c = 0; c < 3; ++c) {
    const double exact = -std::expm1(-number(clock.view(0, c)));
    EXPECT_NEAR(number(d_clock.view(0, c)), exact, kTolerance<T> * exact);
  }
}

TYPED_TEST(Gates, BitsDoNotDependOnTheTeam) {
  using T = TypeParam;
  expect_same_bits_for_any_team([](cpu::Stream& stream) {
    const GatesProblem<T> gates(23, 37);
    gates.forward(stream);
    Rng rng(2);
    StridedMatrix<T> d_write(23, 37), d_read(23, 37), d_clock(23, 37), d_write_bias(1, 37), d_read_bias(1, 37),
        d_clock_bias(1, 37);
    for (auto* matrix : {&d_write, &d_read, &d_clock}) matrix->normal(rng);
    run(stream, GatesBackward<T>{gates.write.view, gates.read.view, gates.clock.view, d_write.view, d_read.view,
                                 d_clock.view, d_write.view, d_read.view, d_clock.view, d_write_bias.vector(),
                                 d_read_bias.vector(), d_clock_bias.vector()});
    return std::vector{gates.write, gates.read,   gates.clock, d_write,     d_read,
                       d_clock,     d_write_bias, d_read_bias, d_clock_bias};
  });
}

}  // namespace
}  // namespace essh
