#include "essh/kernels/window_attention.h"

#include "essh/kernels/reference/window_attention.h"
#include "tests/kernels/kernel_checks.h"

namespace essh {
namespace {

using reference::Dual;

template <class T>
struct AttentionProblem {
  Index sequences, queries, past, heads, head_dim, window, group;
  StridedMatrix<T> q, k, v, out, log_sum;

  // `g` query heads read one kv head.
  AttentionProblem(Index b, Index n, Index before, Index h, Index dim, Index w, Index g = 1)
      : sequences(b),
        queries(n),
        past(before),
        heads(h),
        head_dim(dim),
        window(w),
        group(g),
        q(b * n, h * dim),
        k(b * (before + n), h / g * dim),
        v(b * (before + n), h / g * dim),
        out(b * n, h * dim),
        log_sum(b * n, h) {
    Rng rng(static_cast<std::uint64_t>(n) * 100 + static_cast<std::uint64_t>(w));
    q.normal(rng, 1.5);
    k.normal(rng, 1.5);
    v.normal(rng);
  }

  void forward(cpu::Stream& stream) const {
    run(stream, WindowAttentionForward<T>{sequences, queries, past, head_dim, window, q.view, k.view, v.view, out.view,
                                          log_sum.view});
  }
};

// One head of one sequence of a problem, for the reference.
template <class S>
struct Head {
  std::vector<std::vector<S>> q, k, v;

  template <class T>
  Head(const AttentionProblem<T>& p, Index sequence, Index head) {
    const Index keys = p.past + p.queries, first = head * p.head_dim, kv_first = head / p.group * p.head_dim;
    for (Index j = 0; j < p.queries; ++j) q.push_back(p.q.template row<S>(sequence * p.queries + j, first, p.head_dim));
    for (Index r = 0; r < keys; ++r) {
      k.push_back(p.k.template row<S>(sequence * keys + r, kv_first, p.head_dim));
      v.push_back(p.v.template row<S>(sequence * keys + r, kv_first, p.head_dim));
    }
  }
  reference::Attended<S> attend(Index past, Index window) const {
    return reference::window_attention(q, k, v, static_cast<std::size_t>(past), static_cast<std::size_t>(window));
  }
};

constexpr Index kLengths[] = {1, 31, 32, 33, 100};
constexpr Index kWindows[] = {1, 5, 64, 200};

template <class T>
class WindowAttention : public ::testing::Test {};
TYPED_TEST_SUITE(WindowAttention, FloatTypes);

template <class T>
void expect_definition(const AttentionProblem<T>& p) {
  EXPECT_TRUE(p.out.gap_is_intact() && p.log_sum.gap_is_intact());
  for (Index b = 0; b < p.sequences; ++b) {
    for (Index h = 0; h < p.heads; ++h) {
      const auto exact = Head<double>(p, b, h).attend(p.past, p.window);
      for (Index j = 0; j < p.queries; ++j) {
        for (Index i = 0; i < p.head_dim; ++i) {
          expect_close(p.out.view(b * p.queries + j, h * p.head_dim + i),
                       exact.out[static_cast<std::size_t>(j)][static_cast<std::size_t>(i)], "out", 2);
        }
        expect_close(p.log_sum.view(b * p.queries + j, h), exact.log_sum[static_cast<std::size_t>(j)], "log_sum");
      }
    }
  }
}

TYPED_TEST(WindowAttention, ForwardAgreesWithTheDefinition) {
  cpu::Stream stream(2);
  for (const Index length : kLengths) {
    for (const Index window : kWindows) {
      for (const Index head_dim : {6, 16}) {
        AttentionProblem<TypeParam> p(2, length, 0, 2, head_dim, window);
        p.forward(stream);
        expect_definition(p);
      }
    }
  }
}

TYPED_TEST(WindowAttention, KeysOfThePastAreSeen) {
  cpu::Stream stream(2);
  for (const Index past : {1, 40, 97}) {
    for (const Index queries : {1, 3, 7, 8, 40}) {
      for (const Index window : kWindows) {
        AttentionProblem<TypeParam> p(2, queries, past, 2, 8, window);
        p.forward(stream);
        expect_definition(p);
      }
    }
  }
}

// Four query heads per kv head, with one and with two kv heads.
TYPED_TEST(WindowAttention, GroupsOfHeadsShareKeysAndValues) {
  cpu::Stream stream(2);
  for (const Index heads : {4, 8}) {
    for (const Index queries : {1, 7, 33, 100}) {
      for (const Index past : {0, 50}) {
        AttentionProblem<TypeParam> p(2, queries, past, heads, 8, 40, 4);
        p.forward(stream);
        expect_definition(p);
      }
    }
  }
}

TYPED_TEST(WindowAttention, WindowWithoutBoundSeesEverything) {
  cpu::Stream stream(2);
  for (const Index window : {Index{1} << 40, std::numeric_limits<Index>::max()}) {
    for (const Index queries : {3, 70}) {
      AttentionProblem<TypeParam> p(2, queries, 40, 2, 8, window);
      p.forward(stream);
      expect_definition(p);
    }
  }
}

// The last of eight sequences, and the same alone.
TYPED_TEST(WindowAttention, BitsDoNotDependOnOtherSequences) {
  using T = TypeParam;
  cpu::Stream stream(2);
  for (const Index queries : {1, 60}) {
    const AttentionProblem<T> p(8, queries, 20, 4, 8, 50, 2);
    p.forward(stream);
    StridedMatrix<T> out(queries, 32);
    run(stream, WindowAttentionForward<T>{1,
                                          queries,
                                          20,
                                          8,
                                          50,
                                          p.q.view.middle(7 * queries, queries),
                                          p.k.view.middle(7 * (20 + queries), 20 + queries),
                                          p.v.view.middle(7 * (20 + queries), 20 + queries),
                                          out.view,
                                          {}});
    for (Index j = 0; j < queries; ++j) {
      for (Index c = 0; c < 32; ++c) EXPECT_EQ(out.view(j, c), p.out.view(7 * queries + j, c));
    }
  }
}

// The code paths for few and for many queries: the same rows one at a time, in sevens, and all at once.
TYPED_TEST(WindowAttention, AnyGroupingOfTheQueriesAgrees) {
  using T = TypeParam;
  cpu::Stream stream(2);
  for (const Index window : kWindows) {
    AttentionProblem<T> p(1, 70, 0, 2, 8, window);
    p.forward(stream);
    for (const Index group : {1, 7, 10}) {
      for (Index first = 0; first < 70; first += group) {
        StridedMatrix<T> out(group, 16);
        run(stream, WindowAttentionForward<T>{1,
                                              group,
                                              first,
                                              8,
                                              window,
                                              p.q.view.middle(first, group),
                                              p.k.view.top(first + group),
                                              p.v.view.top(first + group),
                                              out.view,
                                              {}});
        for (Index j = 0; j < group; ++j) {
          for (Index c = 0; c < 16; ++c)
            expect_close(out.view(j, c), static_cast<double>(p.out.view(first + j, c)), "out", 2);
        }
      }
    }
  }
}

TYPED_TEST(WindowAttention, LargeScoresStayFinite) {
  using T = TypeParam;
  cpu::Stream stream(2);
  for (const Index queries : {3, 40}) {
    AttentionProblem<T> p(1, queries, 0, 1, 8, 16);
    for (Index r = 0; r < queries; ++r) {
      for (Index c = 0; c < 8; ++c) {
        p.q.view(r, c) *= T(1e4);
        p.k.view(r, c) *= T(1e4);
      }
    }
    p.forward(stream);
    for (Index r = 0; r < queries; ++r) {
      for (Index c = 0; c < 8; ++c) EXPECT_TRUE(std::isfinite(p.out.view(r, c)));
    }
  }
}

TYPED_TEST(WindowAttention, NoQueriesAreANoOp) {
  using T = TypeParam;
  cpu::Stream stream(2);
  AttentionProblem<T>(2, 0, 0, 2, 8, 4).forward(stream);
  AttentionProblem<T>(2, 0, 5, 2, 8, 4).forward(stream);
  AttentionProblem<T>(0, 9, 0, 2, 8, 4).forward(stream);
  AttentionProblem<T> p(2, 0, 0, 2, 8, 4);
  run(stream, WindowAttentionBackward<T>{2, 0, 8, 4, p.q.view, p.k.view, p.v.view, p.out.view, p.log_sum.view,
                                         p.out.view, p.q.view, p.k.view, p.v.view});
}

template <class T>
struct Gradients {
  StridedMatrix<T> d_out, d_q, d_k, d_v;

  explicit Gradients(const AttentionProblem<T>& p) : d_out(p.q), d_q(p.q), d_k(p.k), d_v(p.k) {
    Rng rng(44);
    d_out.normal(rng);
  }
  void backward(cpu::Stream& stream, const AttentionProblem<T>& p) const {
    run(stream, WindowAttentionBackward<T>{p.sequences, p.queries, p.head_dim, p.window, p.q.view, p.k.view, p.v.view,
                                           p.out.view, p.log_sum.view, d_out.view, d_q.view, d_k.view, d_v.view});
  }
};

TYPED_TEST(WindowAttention, GradientsAgreeWithDualNumbersAndDifferences) {
  using T = TypeParam;
  cpu::Stream stream(2);
  for (const Index length : kLengths) {
    for (const Index window : kWindows) {
      const AttentionProblem<T> p(1, length, 0, 2, 4, window);
      p.forward(stream);
      const Gradients<T> g(p);
      g.backward(stream, p);
      EXPECT_TRUE(g.d_q.gap_is_intact() && g.d_k.gap_is_intact() && g.d_v.gap_is_intact());
      for (Index h = 0; h < 2; ++h) {
        Head<Dual> head(p, 0, h);
        const auto objective = [&] {
          const auto attended = head.attend(0, window);
          Dual sum = 0;
          for (Index j = 0; j < length; ++j) {
            for (Index i = 0; i < 4; ++i) {
              sum += Dual(static_cast<double>(g.d_out.view(j, h * 4 + i))) *
                     attended.out[static_cast<std::size_t>(j)][static_cast<std::size_t>(i)];
            }
          }
          return sum;
        };
        // Every row of short sequences; rows on both sides of the block boundaries of long ones.
        for (Index r = 0; r < length; r += (length > 40 ? 31 : length > 10 ? 10 : 1)) {
          const auto row = static_cast<std::size_t>(r);
          for (Index i = 0; i < 4; i += 3) {
            const auto column = static_cast<std::size_t>(i);
            expect_gradient(g.d_q.view(r, h * 4 + i), head.q[row][column], objective, "q", 2);
            expect_gradient(g.d_k.view(r, h * 4 + i), head.k[row][column], objective, "k", 2);
            expect_gradient(g.d_v.view(r, h * 4 + i), head.v[row][column], objective, "v", 2);
          }
        }
      }
    }
  }
}

// The gradients of a kv head are sums over the query heads that read it.
TYPED_TEST(WindowAttention, GradientsOfGroupsAgreeWithDualNumbersAndDifferences) {
  using T = TypeParam;
  cpu::Stream stream(2);
  constexpr Index kLength = 40, kGroup = 4, kDim = 4;
  for (const Index heads : {4, 8}) {
    for (const Index window : {7, 1000}) {
      const AttentionProblem<T> p(1, kLength, 0, heads, kDim, window, kGroup);
      p.forward(stream);
      const Gradients<T> g(p);
      g.backward(stream, p);
      EXPECT_TRUE(g.d_q.gap_is_intact() && g.d_k.gap_is_intact() && g.d_v.gap_is_intact());
      for (Index kv = 0; kv < heads / kGroup; ++kv) {
        std::vector<Head<Dual>> members;
        for (Index h = kv * kGroup; h < (kv + 1) * kGroup; ++h) members.emplace_back(p, 0, h);
        const auto objective = [&] {
          Dual sum = 0;
          for (Index i = 0; i < kGroup; ++i) {
            auto& member = members[static_cast<std::size_t>(i)];
            member.k = members[0].k;
            member.v = members[0].v;
            const auto attended = member.attend(0, window);
            for (Index j = 0; j < kLength; ++j) {
              for (Index c = 0; c < kDim; ++c) {
                sum += Dual(static_cast<double>(g.d_out.view(j, (kv * kGroup + i) * kDim + c))) *
                       attended.out[static_cast<std::size_t>(j)][static_cast<std::size_t>(c)];
              }
            }
          }
          return sum;
        };
        for (Index r = 0; r < kLength; r += 13) {
          const auto row = static_cast<std::size_t>(r);
          expect_gradient(g.d_k.view(r, kv * kDim + 1), members[0].k[row][1], objective, "k", 4);
          expect_gradient(g.d_v.view(r, kv * kDim + 2), members[0].v[row][2], objective, "v", 4);
          for (Index i = 0; i < kGroup; ++i)
            expect_gradient(g.d_q.view(r, (kv * kGroup + i) * kDim), members[static_cast<std::size_t>(i)].q[row][0],
                            objective, "q", 4);
        }
      }
    }
  }
}

TYPED_TEST(WindowAttention, BitsDoNotDependOnTheTeam) {
  using T = TypeParam;
  expect_same_bits_for_any_team([](cpu::Stream& stream) {
    const AttentionProblem<T> few(3, 2, 20, 3, 8, 9), p(2, 75, 0, 6, 8, 20, 2);
    few.forward(stream);
    p.forward(stream);
    const Gradients<T> g(p);
    g.backward(stream, p);
    return std::vector{few.out, p.out, p.log_sum, g.d_q, g.d_k, g.d_v};
  });
}

}  // namespace
}  // namespace essh
