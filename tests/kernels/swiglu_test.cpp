#include "essh/kernels/swiglu.h"

#include "essh/kernels/reference/swiglu.h"
#include "tests/kernels/kernel_checks.h"

namespace essh {
namespace {

using reference::Dual;

template <class T>
class Swiglu : public ::testing::Test {};
TYPED_TEST_SUITE(Swiglu, FloatTypes);

template <class T>
struct SwigluProblem {
  StridedMatrix<T> gate, up, d_hidden;
  SwigluProblem(Index rows, Index columns) : gate(rows, columns), up(rows, columns), d_hidden(rows, columns) {
    Rng rng(15);
    gate.normal(rng, 4);
    up.normal(rng);
    d_hidden.normal(rng);
  }
};

template <class T>
void expect_equal(const StridedMatrix<T>& x, const StridedMatrix<T>& y, const char* what) {
  for (Index r = 0; r < x.view.rows; ++r) {
    for (Index c = 0; c < x.view.cols; ++c) EXPECT_EQ(x.view(r, c), y.view(r, c)) << what;
  }
}

TYPED_TEST(Swiglu, ForwardAgreesWithTheDefinition) {
  using T = TypeParam;
  cpu::Stream stream(2);
  for (const Index rows : {0, 1, 3}) {
    for (const Index columns : {1, 17, 256, 257, 600}) {
      SwigluProblem<T> p(rows, columns);
      StridedMatrix<T> hidden(rows, columns);
      run(stream, SwigluForward<T>{p.gate.view, p.up.view, hidden.view});
      EXPECT_TRUE(hidden.gap_is_intact());
      for (Index r = 0; r < rows; ++r) {
        for (Index c = 0; c < columns; ++c) {
          const auto gate = static_cast<double>(p.gate.view(r, c)), up = static_cast<double>(p.up.view(r, c));
          expect_close(hidden.view(r, c), reference::swiglu(gate, up), "hidden");
        }
      }
      StridedMatrix<T> over_gate = p.gate, over_up = p.up;
      run(stream, SwigluForward<T>{over_gate.view, p.up.view, over_gate.view});
      run(stream, SwigluForward<T>{p.gate.view, over_up.view, over_up.view});
      expect_equal(over_gate, hidden, "over gate");
      expect_equal(over_up, hidden, "over up");
    }
  }
}

TYPED_TEST(Swiglu, FarGatesSaturate) {
  using T = TypeParam;
  cpu::Stream stream(1);
  StridedMatrix<T> gate(1, 2), up(1, 2), hidden(1, 2);
  gate.view(0, 0) = T(1e30);
  gate.view(0, 1) = T(-1e30);
  up.fill([] { return 1.0; });
  run(stream, SwigluForward<T>{gate.view, up.view, hidden.view});
  EXPECT_EQ(hidden.view(0, 0), T(1e30));
  EXPECT_EQ(hidden.view(0, 1), T(0));
}

TYPED_TEST(Swiglu, GradientsAgreeWithDualNumbers) {
  using T = TypeParam;
  cpu::Stream stream(2);
  const Index rows = 2, columns = 19;
  SwigluProblem<T> p(rows, columns);
  StridedMatrix<T> d_gate(rows, columns), d_up(rows, columns);
  run(stream, SwigluBackward<T>{p.gate.view, p.up.view, p.d_hidden.view, d_gate.view, d_up.view});
  EXPECT_TRUE(d_gate.gap_is_intact() && d_up.gap_is_intact());
  for (Index r = 0; r < rows; ++r) {
    for (Index c = 0; c < columns; ++c) {
      Dual gate = static_cast<double>(p.gate.view(r, c)), up = static_cast<double>(p.up.view(r, c));
      const auto objective = [&] {
        return Dual(static_cast<double>(p.d_hidden.view(r, c))) * reference::swiglu(gate, up);
      };
      expect_gradient(d_gate.view(r, c), gate, objective, "gate");
      expect_gradient(d_up.view(r, c), up, objective, "up");
    }
  }

  SwigluProblem<T> in_place = p;
  run(stream,
      SwigluBackward<T>{in_place.gate.view, in_place.up.view, p.d_hidden.view, in_place.gate.view, in_place.up.view});
  expect_equal(in_place.gate, d_gate, "d_gate over gate");
  expect_equal(in_place.up, d_up, "d_up over up");
  for (const bool gate_over_hidden : {true, false}) {
    SwigluProblem<T> over = p;
    StridedMatrix<T> other(rows, columns);
    run(stream, SwigluBackward<T>{p.gate.view, p.up.view, over.d_hidden.view,
                                  gate_over_hidden ? over.d_hidden.view : other.view,
                                  gate_over_hidden ? other.view : over.d_hidden.view});
    expect_equal(over.d_hidden, gate_over_hidden ? d_gate : d_up, "over d_hidden");
    expect_equal(other, gate_over_hidden ? d_up : d_gate, "beside d_hidden");
  }
}

TYPED_TEST(Swiglu, BitsDoNotDependOnTheTeam) {
  using T = TypeParam;
  expect_same_bits_for_any_team([](cpu::Stream& stream) {
    SwigluProblem<T> p(13, 300);
    StridedMatrix<T> hidden(13, 300), d_gate(13, 300), d_up(13, 300);
    run(stream, SwigluForward<T>{p.gate.view, p.up.view, hidden.view});
    run(stream, SwigluBackward<T>{p.gate.view, p.up.view, p.d_hidden.view, d_gate.view, d_up.view});
    return std::vector{hidden, d_gate, d_up};
  });
}

}  // namespace
}  // namespace essh
