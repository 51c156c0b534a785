#include "essh/kernels/window_step.h"

#include "essh/kernels/reference/window_attention.h"
#include "tests/kernels/kernel_checks.h"

namespace essh {
namespace {

struct Heads {
  Index query, kv;
};
constexpr Index kHeadDim = 6;

// One cache per sequence, each in separate memory. Rows not yet filled hold NaN: they must not be read.
template <class T>
struct Caches {
  Index width;
  std::vector<std::vector<T>> keys, values;
  std::vector<T*> key_pointers, value_pointers;

  Caches(Index sequences, Index rows, Index columns) : width(columns) {
    for (Index b = 0; b < sequences; ++b) {
      for (auto* side : {&keys, &values}) side->emplace_back(static_cast<std::size_t>(rows * width), T(NAN));
    }
    for (auto& cache : keys) key_pointers.push_back(cache.data());
    for (auto& cache : values) value_pointers.push_back(cache.data());
  }
  T* key(Index b, Index row) const { return key_pointers[static_cast<std::size_t>(b)] + row * width; }
  T* value(Index b, Index row) const { return value_pointers[static_cast<std::size_t>(b)] + row * width; }
};

template <class T>
void step(cpu::Stream& stream, const Caches<T>& caches, Index window, Index rows, Matrix<const T> q, Matrix<const T> k,
          Matrix<const T> v, const std::vector<Index>& positions, Matrix<T> out) {
  run(stream, WindowStep<T>{.head_dim = kHeadDim,
                            .window = window,
                            .rows = rows,
                            .longest = *std::max_element(positions.begin(), positions.end()) + 1,
                            .q = q,
                            .k = k,
                            .v = v,
                            .keys = {caches.key_pointers.data(), q.rows},
                            .values = {caches.value_pointers.data(), q.rows},
                            .positions = {positions.data(), q.rows},
                            .out = out});
}

// Sequences of `kLength` tokens that start together.
template <class T>
struct WindowStepProblem {
  static constexpr Index kSequences = 3, kLength = 40;
  Heads heads;
  StridedMatrix<T> q, k, v, out;

  explicit WindowStepProblem(Heads h)
      : heads(h), q(kSequences * kLength, h.query * kHeadDim), k(kSequences * kLength, h.kv * kHeadDim), v(k), out(q) {
    Rng rng(5);
    q.normal(rng, 1.5);
    k.normal(rng, 1.5);
    v.normal(rng);
  }
  // Row t of every sequence.
  Matrix<T> token(const StridedMatrix<T>& m, Index t) const {
    return {m.view.row(t), kSequences, m.view.cols, kLength * m.view.stride};
  }
  // All tokens one after the other, with rings of `rows` rows, or growing caches.
  StridedMatrix<T> step_by_step(cpu::Stream& stream, Index window, Index rows) const {
    const Caches<T> caches(kSequences, rows == 0 ? kLength : rows, k.view.cols);
    StridedMatrix<T> result(out);
    for (Index t = 0; t < kLength; ++t)
      step<T>(stream, caches, window, rows, token(q, t), token(k, t), token(v, t), {t, t, t}, token(result, t));
    EXPECT_TRUE(result.gap_is_intact());
    return result;
  }
  void expect_definition(const StridedMatrix<T>& stepped, Index window) const {
    for (Index b = 0; b < kSequences; ++b) {
      for (Index h = 0; h < heads.query; ++h) {
        const Index column = h * kHeadDim, kv_column = h / (heads.query / heads.kv) * kHeadDim;
        std::vector<std::vector<double>> queries, keys, values;
        for (Index t = b * kLength; t < (b + 1) * kLength; ++t) {
          queries.push_back(q.row(t, column, kHeadDim));
          keys.push_back(k.row(t, kv_column, kHeadDim));
          values.push_back(v.row(t, kv_column, kHeadDim));
        }
        const auto exact = reference::window_attention(queries, keys, values, 0, static_cast<std::size_t>(window));
        for (Index t = 0; t < kLength; ++t) {
          for (Index i = 0; i < kHeadDim; ++i)
            expect_close(stepped.view(b * kLength + t, column + i),
                         exact.out[static_cast<std::size_t>(t)][static_cast<std::size_t>(i)], "out", 2);
        }
      }
    }
  }
};

template <class T>
class WindowStepTest : public ::testing::Test {};
TYPED_TEST_SUITE(WindowStepTest, FloatTypes);

TYPED_TEST(WindowStepTest, TokenByTokenAgreesWithTheDefinition) {
  cpu::Stream stream(2);
  for (const Heads heads : {Heads{2, 2}, Heads{4, 1}, Heads{8, 2}}) {
    const WindowStepProblem<TypeParam> p(heads);
    for (const Index window : {1, 7, 39, 40, 100}) p.expect_definition(p.step_by_step(stream, window, window), window);
  }
}

TYPED_TEST(WindowStepTest, BitsDoNotDependOnTheRowsOfTheCache) {
  cpu::Stream stream(2);
  const WindowStepProblem<TypeParam> p({4, 2});
  for (const Index window : {1, 7, 39}) {
    const auto expected = p.step_by_step(stream, window, window);
    for (const Index rows : {window + 1, window + 9, Index{0}}) {
      const auto result = p.step_by_step(stream, window, rows);
      EXPECT_EQ(
          std::memcmp(result.storage.data(), expected.storage.data(), sizeof(TypeParam) * expected.storage.size()), 0)
          << "window " << window << ", rows " << rows;
    }
  }
}

TYPED_TEST(WindowStepTest, WindowWithoutBoundSeesEverything) {
  cpu::Stream stream(2);
  const WindowStepProblem<TypeParam> p({4, 2});
  p.expect_definition(p.step_by_step(stream, Index{1} << 40, 0), WindowStepProblem<TypeParam>::kLength);
  p.expect_definition(p.step_by_step(stream, std::numeric_limits<Index>::max(), 0),
                      WindowStepProblem<TypeParam>::kLength);
}

TYPED_TEST(WindowStepTest, WritesTheRowOfThePositionAlone) {
  using T = TypeParam;
  cpu::Stream stream(2);
  constexpr Index kWindow = 4, kRows = 5, kWidth = 2 * kHeadDim;
  Rng rng(1);
  StridedMatrix<T> q(2, 2 * kWidth), k(2, kWidth), v(k), out(q);
  for (auto* m : {&q, &k, &v}) m->normal(rng);
  const Caches<T> caches(2, kRows, kWidth);
  for (const auto* pointers : {&caches.key_pointers, &caches.value_pointers}) {
    for (T* cache : *pointers) std::generate_n(cache, kRows * kWidth, [&] { return static_cast<T>(rng.normal()); });
  }
  const auto keys = caches.keys, values = caches.values;
  const std::vector<Index> positions{1, 7};
  step<T>(stream, caches, kWindow, kRows, q.view, k.view, v.view, positions, out.view);
  for (std::size_t b = 0; b < 2; ++b) {
    for (Index i = 0; i < kRows * kWidth; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const bool fresh = i / kWidth == positions[b] % kRows;
      EXPECT_EQ(caches.keys[b][at], fresh ? k.view(static_cast<Index>(b), i % kWidth) : keys[b][at]);
      EXPECT_EQ(caches.values[b][at], fresh ? v.view(static_cast<Index>(b), i % kWidth) : values[b][at]);
    }
  }
}

// A sequence alone, and as the last of eight at different positions; and later, with its window at another place in the
// ring.
TYPED_TEST(WindowStepTest, BitsDoNotDependOnOtherSequencesOrThePlaceInTheRing) {
  using T = TypeParam;
  cpu::Stream stream(2);
  constexpr Index kSequences = 8, kWindow = 30, kRows = 33, kWidth = 2 * kHeadDim, kPosition = 50;
  Rng rng(3);
  StridedMatrix<T> q(kSequences, 4 * kWidth), k(kSequences, kWidth), v(k), out(q);
  for (auto* m : {&q, &k, &v}) m->normal(rng, 1.5);
  StridedMatrix<T> seen_keys(kWindow - 1, kWidth), seen_values(seen_keys);
  seen_keys.normal(rng, 1.5);
  seen_values.normal(rng);

  const auto fill = [&](const Caches<T>& caches, Index b, Index position) {
    for (Index i = 0; i < kWindow - 1; ++i) {
      const Index row = (position - kWindow + 1 + i) % kRows;
      std::copy_n(seen_keys.view.row(i), kWidth, caches.key(b, row));
      std::copy_n(seen_values.view.row(i), kWidth, caches.value(b, row));
    }
  };
  const auto last = [&](Matrix<T> m) { return m.middle(kSequences - 1, 1); };
  const auto alone_at = [&](Index position) {
    const Caches<T> caches(1, kRows, kWidth);
    fill(caches, 0, position);
    StridedMatrix<T> result(1, 4 * kWidth);
    step<T>(stream, caches, kWindow, kRows, last(q.view), last(k.view), last(v.view), {position}, result.view);
    return result.storage;
  };
  const auto expected = alone_at(kPosition);
  for (Index later = 1; later < kRows; ++later) {
    const auto result = alone_at(kPosition + later);
    EXPECT_EQ(std::memcmp(result.data(), expected.data(), sizeof(T) * static_cast<std::size_t>(4 * kWidth)), 0)
        << later;
  }

  const Caches<T> caches(kSequences, kRows, kWidth);
  std::vector<Index> positions;
  for (Index b = 0; b < kSequences; ++b) {
    positions.push_back(b + 1 == kSequences ? kPosition : 29 + 17 * b);
    fill(caches, b, positions.back());
  }
  step<T>(stream, caches, kWindow, kRows, q.view, k.view, v.view, positions, out.view);
  EXPECT_EQ(
      std::memcmp(out.view.row(kSequences - 1), expected.data(), sizeof(T) * static_cast<std::size_t>(4 * kWidth)), 0);
}

TYPED_TEST(WindowStepTest, BitsDoNotDependOnTheTeam) {
  const WindowStepProblem<TypeParam> p({4, 2});
  expect_same_bits_for_any_team([&](cpu::Stream& stream) { return std::vector{p.step_by_step(stream, 9, 9)}; });
}

// More rows than one task scores, and heads that teams divide unevenly: six query heads of three kv heads.
TYPED_TEST(WindowStepTest, LongWindowsAgreeWithTheDefinition) {
  using T = TypeParam;
  constexpr Index kWindow = 150, kRows = 163, kPosition = 400, kWidth = 3 * kHeadDim;
  for (const Index sequences : {1, 2}) {
    Rng rng(7);
    StridedMatrix<T> q(sequences, 2 * kWidth), k(sequences, kWidth), v(k);
    // The rows that a step sees in order, the new one last.
    StridedMatrix<T> keys(sequences * kWindow, kWidth), values(keys);
    for (auto* m : {&q, &k, &v, &keys, &values}) m->normal(rng, 1.5);
    Caches<T> caches(sequences, kRows, kWidth);
    for (Index b = 0; b < sequences; ++b) {
      for (Index i = 0; i < kWindow; ++i) {
        T *key = keys.view.row(b * kWindow + i), *value = values.view.row(b * kWindow + i);
        const Index row = (kPosition - kWindow + 1 + i) % kRows;
        std::copy_n(i + 1 < kWindow ? key : k.view.row(b), kWidth, i + 1 < kWindow ? caches.key(b, row) : key);
        std::copy_n(i + 1 < kWindow ? value : v.view.row(b), kWidth, i + 1 < kWindow ? caches.value(b, row) : value);
      }
    }
    const std::vector<Index> positions(static_cast<std::size_t>(sequences), kPosition);
    const auto result = [&](cpu::Stream& stream) {
      StridedMatrix<T> out(q);
      step<T>(stream, caches, kWindow, kRows, q.view, k.view, v.view, positions, out.view);
      EXPECT_TRUE(out.gap_is_intact());
      return std::vector{out};
    };
    expect_same_bits_for_any_team(result);
    cpu::Stream stream(2);
    const auto out = result(stream)[0];
    for (Index b = 0; b < sequences; ++b) {
      for (Index h = 0; h < 6; ++h) {
        std::vector<std::vector<double>> seen_keys, seen_values;
        for (Index i = b * kWindow; i < (b + 1) * kWindow; ++i) {
          seen_keys.push_back(keys.row(i, h / 2 * kHeadDim, kHeadDim));
          seen_values.push_back(values.row(i, h / 2 * kHeadDim, kHeadDim));
        }
        const auto exact = reference::window_attention({q.row(b, h * kHeadDim, kHeadDim)}, seen_keys, seen_values,
                                                       kWindow - 1, kWindow);
        for (Index i = 0; i < kHeadDim; ++i)
          expect_close(out.view(b, h * kHeadDim + i), exact.out[0][static_cast<std::size_t>(i)], "out", 2);
      }
    }
  }
}

}  // namespace
}  // namespace essh
