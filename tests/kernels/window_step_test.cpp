#include "essh/kernels/window_step.h"

#include "essh/kernels/window_attention.h"
#include "tests/kernels/kernel_checks.h"

namespace essh {
namespace {

template <class T>
class WindowStepTest : public ::testing::Test {};
TYPED_TEST_SUITE(WindowStepTest, FloatTypes);

// Sequences of `length` tokens, the last `window` of them seen, and the same token by token.
template <class T>
struct Problem {
  static constexpr Index kSequences = 3, kLength = 40, kHeads = 2, kHeadDim = 6, kWidth = kHeads * kHeadDim;
  StridedMatrix<T> q, k, v, out;

  Problem() : q(kSequences * kLength, kWidth), k(q), v(q), out(q) {
    Rng rng(5);
    q.normal(rng, 1.5);
    k.normal(rng, 1.5);
    v.normal(rng);
  }
  // Row t of sequence b for every b, where b starts b tokens later.
  Matrix<T> token(const StridedMatrix<T>& m, Index t) const {
    return {m.view.row(t), kSequences, kWidth, kLength * m.view.stride};
  }
};

template <class T>
StridedMatrix<T> step_by_step(cpu::Stream& stream, const Problem<T>& p, Index window) {
  using P = Problem<T>;
  StridedMatrix<T> keys(P::kSequences, window * P::kWidth), values(keys), out(p.out);
  // Rows not filled yet are not read.
  keys.fill([] { return NAN; });
  values.fill([] { return NAN; });
  std::vector<Index> positions(P::kSequences, 0);
  for (Index t = 0; t < P::kLength; ++t) {
    run(stream, WindowStep<T>{P::kHeadDim,
                              window,
                              p.token(p.q, t),
                              p.token(p.k, t),
                              p.token(p.v, t),
                              keys.view,
                              values.view,
                              {positions.data(), P::kSequences},
                              p.token(out, t)});
    for (auto& position : positions) ++position;
  }
  EXPECT_TRUE(keys.gap_is_intact() && values.gap_is_intact() && out.gap_is_intact());
  return out;
}

TYPED_TEST(WindowStepTest, TokenByTokenIsTheWholeSequence) {
  using T = TypeParam;
  using P = Problem<T>;
  cpu::Stream stream(2);
  const P p;
  for (const Index window : {1, 7, 39, 40, 100}) {
    run(stream, WindowAttentionForward<T>{
                    P::kSequences, P::kLength, 0, P::kHeadDim, window, p.q.view, p.k.view, p.v.view, p.out.view, {}});
    const auto stepped = step_by_step(stream, p, window);
    for (Index r = 0; r < p.out.view.rows; ++r) {
      for (Index c = 0; c < P::kWidth; ++c)
        expect_close(stepped.view(r, c), static_cast<double>(p.out.view(r, c)), "out", 2);
    }
  }
}

TYPED_TEST(WindowStepTest, SequencesStandAtPositionsOfTheirOwn) {
  using T = TypeParam;
  cpu::Stream stream(2);
  const Index window = 4, width = 8;
  Rng rng(1);
  StridedMatrix<T> q(2, width), k(q), v(q), keys(2, window * width), values(keys), out(q);
  for (auto* m : {&q, &k, &v, &keys, &values}) m->normal(rng);
  const StridedMatrix<T> keys_before(keys);
  const Index positions[] = {1, 6};
  run(stream, WindowStep<T>{4, window, q.view, k.view, v.view, keys.view, values.view, {positions, 2}, out.view});
  for (Index b = 0; b < 2; ++b) {
    const Index slot = positions[b] % window, filled = b == 0 ? 2 : 4;
    for (Index r = 0; r < window; ++r) {
      for (Index c = 0; c < width; ++c)
        EXPECT_EQ(keys.view(b, r * width + c), r == slot ? k.view(b, c) : keys_before.view(b, r * width + c));
    }
    StridedMatrix<T> alone(1, width);
    run(stream, WindowAttentionForward<T>{1,
                                          1,
                                          filled - 1,
                                          4,
                                          window,
                                          q.view.middle(b, 1),
                                          dense(keys.view.row(b), filled, width),
                                          dense(values.view.row(b), filled, width),
                                          alone.view,
                                          {}});
    for (Index c = 0; c < width; ++c) EXPECT_EQ(out.view(b, c), alone.view(0, c));
  }
}

TYPED_TEST(WindowStepTest, BitsDoNotDependOnTheTeam) {
  const Problem<TypeParam> p;
  expect_same_bits_for_any_team([&](cpu::Stream& stream) { return std::vector{step_by_step(stream, p, 9)}; });
}

}  // namespace
}  // namespace essh
