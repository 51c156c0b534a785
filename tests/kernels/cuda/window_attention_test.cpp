#include "essh/kernels/window_attention.h"

#include <limits>

#include "essh/kernels/clear.h"
#include "tests/kernels/cuda/device_matrix.h"

namespace essh {
namespace {

struct AttentionCase {
  Index sequences, queries, past, heads, head_dim, window;
  Index kv_heads = heads;

  Index rows() const { return sequences * queries; }
  Index key_rows() const { return sequences * (past + queries); }
  Index cols() const { return heads * head_dim; }
  Index kv_cols() const { return kv_heads * head_dim; }
};

std::string describe(const AttentionCase& s, Layout layout) {
  return fmt::format("{} sequences, {} queries after {}, {}:{} heads of {}, window {}{}", s.sequences, s.queries,
                     s.past, s.heads, s.kv_heads, s.head_dim, s.window,
                     layout == Layout::Aligned ? "" : ", misaligned");
}

cpu::Stream& cpu_stream() {
  static cpu::Stream stream;
  return stream;
}

// The same inputs on both devices: the GPU computes in T, the CPU in double.
template <class T>
struct AttentionProblem {
  AttentionCase s;
  StridedMatrix<double> q, k, v, d_out;
  DeviceMatrix<T> gpu_q, gpu_k, gpu_v, gpu_d_out;

  AttentionProblem(cuda::Stream& stream, const AttentionCase& shape, Layout layout, double spread = 1.5)
      : s(shape),
        q(s.rows(), s.cols(), 0),
        k(s.key_rows(), s.kv_cols(), 0),
        v(s.key_rows(), s.kv_cols(), 0),
        d_out(s.rows(), s.cols(), 0),
        gpu_q(stream, s.rows(), s.cols(), layout),
        gpu_k(stream, s.key_rows(), s.kv_cols(), layout),
        gpu_v(stream, s.key_rows(), s.kv_cols(), layout),
        gpu_d_out(stream, s.rows(), s.cols(), layout) {
    Rng rng(static_cast<std::uint64_t>(s.queries * 100 + s.window));
    gpu_q.set(q.normal(rng, spread));
    gpu_k.set(k.normal(rng, spread));
    gpu_v.set(v.normal(rng));
    gpu_d_out.set(d_out.normal(rng));
  }
};

template <class T>
struct Attended {
  DeviceMatrix<T> out;
  DeviceMatrix<float> log_sum;

  Attended(cuda::Stream& stream, const AttentionProblem<T>& p, Layout layout)
      : out(stream, p.s.rows(), p.s.cols(), layout), log_sum(stream, p.s.rows(), p.s.heads, layout) {
    run(stream, WindowAttentionForward<T>{p.s.sequences, p.s.queries, p.s.past, p.s.head_dim, p.s.window,
                                          p.gpu_q.view(), p.gpu_k.view(), p.gpu_v.view(), out.view(), log_sum.view()});
  }
};

struct ExactAttended {
  StridedMatrix<double> out, log_sum;

  template <class T>
  explicit ExactAttended(const AttentionProblem<T>& p)
      : out(p.s.rows(), p.s.cols(), 0), log_sum(p.s.rows(), p.s.heads, 0) {
    run(cpu_stream(), WindowAttentionForward<double>{p.s.sequences, p.s.queries, p.s.past, p.s.head_dim, p.s.window,
                                                     p.q.view, p.k.view, p.v.view, out.view, log_sum.view});
  }
};

template <class T>
struct Gradients {
  DeviceMatrix<T> d_q, d_k, d_v;

  Gradients(cuda::Stream& stream, const AttentionProblem<T>& p, const Attended<T>& attended, Layout layout)
      : d_q(stream, p.s.rows(), p.s.cols(), layout),
        d_k(stream, p.s.rows(), p.s.kv_cols(), layout),
        d_v(stream, p.s.rows(), p.s.kv_cols(), layout) {
    run(stream, WindowAttentionBackward<T>{p.s.sequences, p.s.queries, p.s.head_dim, p.s.window, p.gpu_q.view(),
                                           p.gpu_k.view(), p.gpu_v.view(), attended.out.view(), attended.log_sum.view(),
                                           p.gpu_d_out.view(), d_q.view(), d_k.view(), d_v.view()});
  }
};

template <class T>
void expect_forward(cuda::Stream& stream, const AttentionCase& s, Layout layout, double slack = 1) {
  if (!next_case()) return;
  const AttentionProblem<T> p(stream, s, layout);
  Attended<T> gpu(stream, p, layout);
  const ExactAttended exact(p);
  EXPECT_LE(relative_error(gpu.out.get(), exact.out, s.head_dim), slack * kCudaTolerance<T>) << describe(s, layout);
  // The absolute error of a log is the relative error of its sum.
  const auto log_sum = gpu.log_sum.get();
  for (Index r = 0; r < s.rows(); ++r) {
    for (Index h = 0; h < s.heads; ++h) {
      const double there = exact.log_sum.view(r, h);
      ASSERT_NEAR(log_sum.view(r, h), there, 4e-6 * std::max(1.0, std::abs(there)))
          << describe(s, layout) << ", row " << r;
    }
  }
}

template <class T>
void expect_backward(cuda::Stream& stream, const AttentionCase& s, Layout layout) {
  if (!next_case()) return;
  const AttentionProblem<T> p(stream, s, layout);
  const Attended<T> gpu(stream, p, layout);
  Gradients<T> gradients(stream, p, gpu, layout);
  const ExactAttended exact(p);
  StridedMatrix<double> d_q(s.rows(), s.cols(), 0), d_k(s.rows(), s.kv_cols(), 0), d_v = d_k;
  run(cpu_stream(),
      WindowAttentionBackward<double>{s.sequences, s.queries, s.head_dim, s.window, p.q.view, p.k.view, p.v.view,
                                      exact.out.view, exact.log_sum.view, p.d_out.view, d_q.view, d_k.view, d_v.view});
  // Gradients have more roundings than forward: at most 2.3 times its tolerance was seen, in bf16. A query that sees
  // one key has gradients of zero, computed as differences of equal sums of about one in float, whatever T is.
  constexpr double kCancelled = kCudaTolerance<float> / kCudaTolerance<T>;
  const auto expect = [&](DeviceMatrix<T>& x, const StridedMatrix<double>& there, const char* name) {
    EXPECT_LE(relative_error(x.get(), there, s.head_dim, kCancelled), 2.5 * kCudaTolerance<T>)
        << name << ", " << describe(s, layout);
  };
  expect(gradients.d_q, d_q, "d_q");
  expect(gradients.d_k, d_k, "d_k");
  expect(gradients.d_v, d_v, "d_v");
}

constexpr Layout kLayouts[] = {Layout::Aligned, Layout::Misaligned};
constexpr Index kHeadDims[] = {6, 8, 24, 40, 64, 72, 128};

template <class T>
class CudaWindowAttention : public CudaTest {};
TYPED_TEST_SUITE(CudaWindowAttention, CudaTypes);

TYPED_TEST(CudaWindowAttention, ForwardAgreesWithTheCpu) {
  for (const Layout layout : kLayouts) {
    for (const Index length : {1, 9, 63, 64, 65, 129, 300}) {
      for (const Index window : {1, 5, 64, 100, 1000})
        expect_forward<TypeParam>(this->stream(), {2, length, 0, 2, 64, window}, layout);
    }
  }
}

TYPED_TEST(CudaWindowAttention, BackwardAgreesWithTheCpu) {
  for (const Layout layout : kLayouts) {
    for (const Index length : {1, 9, 63, 64, 65, 129, 300}) {
      for (const Index window : {1, 5, 64, 100, 1000})
        expect_backward<TypeParam>(this->stream(), {2, length, 0, 2, 64, window}, layout);
    }
  }
}

TYPED_TEST(CudaWindowAttention, AnyHeadSize) {
  for (const Layout layout : kLayouts) {
    for (const Index head_dim : kHeadDims) {
      expect_forward<TypeParam>(this->stream(), {2, 70, 0, 3, head_dim, 40}, layout);
      expect_forward<TypeParam>(this->stream(), {2, 3, 50, 3, head_dim, 40}, layout);
      expect_backward<TypeParam>(this->stream(), {2, 70, 0, 3, head_dim, 40}, layout);
    }
  }
}

TYPED_TEST(CudaWindowAttention, KeysOfThePastAreSeen) {
  for (const Index past : {1, 63, 500}) {
    for (const Index queries : {1, 2, 8, 9, 64, 130}) {
      for (const Index window : {64, 200, 2000})
        expect_forward<TypeParam>(this->stream(), {1, queries, past, 2, 64, window}, Layout::Aligned);
    }
  }
}

TYPED_TEST(CudaWindowAttention, GroupsOfHeadsShareKeysAndValues) {
  for (const Layout layout : kLayouts) {
    for (const Index head_dim : {24, 64, 128}) {
      for (const auto& [heads, kv_heads] : {std::pair{4, 1}, std::pair{8, 2}, std::pair{14, 2}}) {
        for (const Index length : {1, 5, 65, 200}) {
          const AttentionCase s{2, length, 0, heads, head_dim, 100, kv_heads};
          expect_forward<TypeParam>(this->stream(), s, layout);
          expect_backward<TypeParam>(this->stream(), s, layout);
        }
        expect_forward<TypeParam>(this->stream(), {2, 3, 300, heads, head_dim, 250, kv_heads}, layout);
        expect_forward<TypeParam>(this->stream(), {2, 70, 300, heads, head_dim, 250, kv_heads}, layout);
      }
    }
  }
}

TYPED_TEST(CudaWindowAttention, WindowWithoutBoundSeesEverything) {
  for (const Index window : {Index{1} << 40, std::numeric_limits<Index>::max()}) {
    for (const Index head_dim : {40, 64}) {
      for (const Index queries : {2, 200})
        expect_forward<TypeParam>(this->stream(), {2, queries, 150, 2, head_dim, window}, Layout::Aligned);
      expect_backward<TypeParam>(this->stream(), {2, 300, 0, 2, head_dim, window}, Layout::Aligned);
    }
  }
}

// Positions of several millions: a window near the end of a cache that is mostly not read.
TYPED_TEST(CudaWindowAttention, APastOfMillions) {
  using T = TypeParam;
  constexpr Index kPast = 3'000'000, kWindow = 300;
  for (const Index queries : {1, 40}) {
    const AttentionCase near{1, queries, kWindow, 1, 64, kWindow};
    const AttentionProblem<T> p(this->stream(), near, Layout::Aligned);
    Attended<T> expected(this->stream(), p, Layout::Aligned);
    Array<T> keys(Device::Cuda, (kPast + queries) * 64, "a test"),
        values(Device::Cuda, (kPast + queries) * 64, "a test");
    const auto far = [&](const Array<T>& to, const DeviceMatrix<T>& from) {
      const auto all = dense(to.data(), kPast + queries, Index{64});
      run(this->stream(), Clear{{reinterpret_cast<std::byte*>(to.data()), static_cast<Index>(to.bytes())}});
      for (Index r = 0; r < near.key_rows(); ++r)
        this->stream().copy(all.row(kPast - kWindow + r), from.view().row(r), 64 * sizeof(T));
      return all;
    };
    DeviceMatrix<T> out(this->stream(), queries, 64);
    run(this->stream(),
        WindowAttentionForward<T>{
            1, queries, kPast, 64, kWindow, p.gpu_q.view(), far(keys, p.gpu_k), far(values, p.gpu_v), out.view(), {}});
    EXPECT_LE(relative_error(out.get(), expected.out.get(), 64), 2 * kCudaTolerance<T>);
  }
}

// The last of eight sequences, and the same alone: single queries in shares, tiles, tensor cores, and more scores than
// backward keeps at once.
TYPED_TEST(CudaWindowAttention, BitsDoNotDependOnOtherSequences) {
  using T = TypeParam;
  for (const auto& s : {AttentionCase{8, 1, 2047, 8, 64, 2048, 2}, AttentionCase{8, 5, 700, 4, 64, 2048},
                        AttentionCase{8, 300, 0, 4, 64, 250, 2}, AttentionCase{8, 130, 100, 4, 40, 250, 2},
                        AttentionCase{8, 2048, 0, 16, 64, 1 << 20, 2}}) {
    const AttentionProblem<T> p(this->stream(), s, Layout::Aligned);
    Attended<T> together(this->stream(), p, Layout::Aligned);
    const Index keys = s.past + s.queries, first = 7 * s.queries;
    DeviceMatrix<T> out(this->stream(), s.queries, s.cols());
    DeviceMatrix<float> log_sum(this->stream(), s.queries, s.heads);
    const auto k = p.gpu_k.view().middle(7 * keys, keys), v = p.gpu_v.view().middle(7 * keys, keys);
    run(this->stream(),
        WindowAttentionForward<T>{1, s.queries, s.past, s.head_dim, s.window, p.gpu_q.view().middle(first, s.queries),
                                  k, v, out.view(), log_sum.view()});
    const auto all = together.out.get(), alone = out.get();
    EXPECT_EQ(std::vector(all.storage.begin() + first * s.cols(), all.storage.end()), alone.storage)
        << describe(s, Layout::Aligned);
    if (s.past > 0) continue;
    Gradients<T> gradients(this->stream(), p, together, Layout::Aligned);
    DeviceMatrix<T> d_q(this->stream(), s.queries, s.cols()), d_k(this->stream(), s.queries, s.kv_cols()),
        d_v(this->stream(), s.queries, s.kv_cols());
    run(this->stream(),
        WindowAttentionBackward<T>{1, s.queries, s.head_dim, s.window, p.gpu_q.view().middle(first, s.queries), k, v,
                                   out.view(), log_sum.view(), p.gpu_d_out.view().middle(first, s.queries), d_q.view(),
                                   d_k.view(), d_v.view()});
    const auto expect_last = [&](DeviceMatrix<T>& whole, DeviceMatrix<T>& part) {
      const auto last = part.get(), every = whole.get();
      EXPECT_EQ(std::vector(every.storage.begin() + 7 * s.queries * last.view.cols, every.storage.end()), last.storage);
    };
    expect_last(gradients.d_q, d_q);
    expect_last(gradients.d_k, d_k);
    expect_last(gradients.d_v, d_v);
  }
}

// The scores of a group are more than backward keeps, those of a single head are not. Compares a group that shares keys
// with separate heads that have copies of them.
TYPED_TEST(CudaWindowAttention, GroupsTooLargeToKeepTheirScores) {
  using T = TypeParam;
  constexpr Index kLength = 4096, kHeads = 40;
  const AttentionProblem<T> grouped(this->stream(), {1, kLength, 0, kHeads, 64, kLength, 1}, Layout::Aligned);
  AttentionProblem<T> copies(this->stream(), {1, kLength, 0, kHeads, 64, kLength}, Layout::Aligned);
  for (auto [to, from] : {std::pair{&copies.k, &grouped.k}, std::pair{&copies.v, &grouped.v}}) {
    for (Index r = 0; r < kLength; ++r) {
      for (Index c = 0; c < kHeads * 64; ++c) to->view(r, c) = from->view(r, c % 64);
    }
  }
  copies.q.storage = grouped.q.storage;
  copies.d_out.storage = grouped.d_out.storage;
  copies.q.view.data = copies.q.storage.data();
  copies.d_out.view.data = copies.d_out.storage.data();
  copies.gpu_q.set(copies.q);
  copies.gpu_k.set(copies.k);
  copies.gpu_v.set(copies.v);
  copies.gpu_d_out.set(copies.d_out);
  const Attended<T> one(this->stream(), grouped, Layout::Aligned), many(this->stream(), copies, Layout::Aligned);
  Gradients<T> first(this->stream(), grouped, one, Layout::Aligned),
      second(this->stream(), copies, many, Layout::Aligned);
  EXPECT_LE(relative_error(first.d_q.get(), second.d_q.get(), 64), kCudaTolerance<T>);
  const auto expect_sums = [&](DeviceMatrix<T>& sums, DeviceMatrix<T>& terms) {
    const auto each = terms.get();
    StridedMatrix<double> exact(kLength, 64, 0);
    for (Index r = 0; r < kLength; ++r) {
      for (Index c = 0; c < kHeads * 64; ++c) exact.view(r, c % 64) += each.view(r, c);
    }
    EXPECT_LE(relative_error(sums.get(), exact, 64), 2 * kCudaTolerance<T>);
  };
  expect_sums(first.d_k, second.d_k);
  expect_sums(first.d_v, second.d_v);
}

// Keys in many shares, down to shares of a single row.
TYPED_TEST(CudaWindowAttention, OneQueryIsSplitOverItsKeys) {
  for (const Index past : {127, 128, 2047, 5000, 20000}) {
    for (const Index heads : {1, 14}) {
      for (const Index window : {2048, 10000, 30000})
        expect_forward<TypeParam>(this->stream(), {1, 1, past, heads, 64, window}, Layout::Aligned);
    }
  }
}

// Among this many rows, some have scores so large that rounding in float shows.
TYPED_TEST(CudaWindowAttention, LongSequences) {
  constexpr double kSlack = std::is_same_v<TypeParam, float> ? 2 : 1;
  for (const Index head_dim : {64, 128}) {
    for (const auto& s : {AttentionCase{1, 2048, 0, 1, head_dim, 2048}, AttentionCase{1, 5000, 0, 1, head_dim, 777}}) {
      expect_forward<TypeParam>(this->stream(), s, Layout::Aligned, kSlack);
      expect_backward<TypeParam>(this->stream(), s, Layout::Aligned);
    }
  }
  expect_forward<TypeParam>(this->stream(), {1, 1024, 2047, 2, 64, 2048}, Layout::Aligned, kSlack);
}

TYPED_TEST(CudaWindowAttention, LargeScoresStayFinite) {
  using T = TypeParam;
  for (const Index queries : {3, 150}) {
    const AttentionProblem<T> p(this->stream(), {1, queries, 0, 2, 64, 70}, Layout::Aligned, 1e4);
    for (const double x : Attended<T>(this->stream(), p, Layout::Aligned).out.get().storage)
      ASSERT_TRUE(std::isfinite(x));
  }
}

TYPED_TEST(CudaWindowAttention, TheBitsOfTwoRunsAreTheSame) {
  using T = TypeParam;
  for (const auto& s : {AttentionCase{3, 400, 0, 5, 64, 250}, AttentionCase{3, 150, 0, 2, 40, 100},
                        AttentionCase{1, 1, 2047, 5, 64, 2048}}) {
    const AttentionProblem<T> p(this->stream(), s, Layout::Aligned);
    Attended<T> one(this->stream(), p, Layout::Aligned), two(this->stream(), p, Layout::Aligned);
    EXPECT_EQ(one.out.bits(), two.out.bits());
    EXPECT_EQ(one.log_sum.bits(), two.log_sum.bits());
    if (s.past > 0) continue;
    Gradients<T> first(this->stream(), p, one, Layout::Aligned), again(this->stream(), p, one, Layout::Aligned);
    EXPECT_EQ(first.d_q.bits(), again.d_q.bits());
    EXPECT_EQ(first.d_k.bits(), again.d_k.bits());
    EXPECT_EQ(first.d_v.bits(), again.d_v.bits());
  }
}

TYPED_TEST(CudaWindowAttention, NoQueriesAreANoOp) {
  using T = TypeParam;
  for (const auto& s :
       {AttentionCase{2, 0, 0, 2, 8, 4}, AttentionCase{2, 0, 5, 2, 8, 4}, AttentionCase{0, 9, 0, 2, 8, 4}}) {
    const AttentionProblem<T> p(this->stream(), s, Layout::Aligned);
    const Attended<T> attended(this->stream(), p, Layout::Aligned);
    if (s.past == 0) Gradients<T>(this->stream(), p, attended, Layout::Aligned);
  }
  this->stream().wait();
}

TYPED_TEST(CudaWindowAttention, HeadsTooLargeAreRefused) {
  using T = TypeParam;
  const AttentionProblem<T> p(this->stream(), {1, 4, 0, 1, 136, 4}, Layout::Aligned);
  EXPECT_THROW(Attended<T>(this->stream(), p, Layout::Aligned), Error);
}

}  // namespace
}  // namespace essh
