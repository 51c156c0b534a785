#include "essh/kernels/cpu/few_rows.h"

#include "essh/kernels/cpu/weight_columns.h"

namespace essh::cpu {
namespace {

// Vectors of weight rows multiplied together: two independent chains of additions hide each other's latency.
constexpr int kGroups = 2;
template <class T>
constexpr Index kPanel = kGroups* kLanes<T>;
constexpr Index kLine = 64;  // bytes of a cache line
#ifdef __aarch64__
constexpr bool kMultipliesByLane = true;  // multiply-add takes a scalar from a lane of another vector, without a load
#else
constexpr bool kMultipliesByLane = false;
#endif
// Rows of x multiplied together, in one pass over a panel. NEON keeps elements of x in registers too.
constexpr int kTogether = kVectorBytes < 64 ? 4 : 8;

// sums[Rows][kPanel] = products of Rows rows of x with kPanel rows of a weight. x_stride is in elements, `stride` in
// bytes. Prefetches the panel `ahead` bytes further on into the second-level cache.
template <class T, Format format, int Rows>
__attribute__((noinline)) void panel_products(const T* x, Index x_stride, const std::byte* weight, Index stride,
                                              Index inner, Index ahead, T* sums) {
  using Columns = WeightColumns<T, format>;
  constexpr Index kSpan = Columns::kSpan, kLineSpan = kLine / Columns::kBytes;
  constexpr int kWidth = static_cast<int>(kLanes<T>);
  Lanes<T> sum[Rows][kGroups];
  unrolled<Rows>([&](auto r) { unrolled<kGroups>([&](auto g) { sum[r()][g()] = Lanes<T>{}; }); });
  const auto rows = [&](int group, Index k) { return weight + group * kLanes<T> * stride + k * Columns::kBytes; };
  const auto add = [&](const T* from, auto group) __attribute__((always_inline)) {
    return [&, from, group ](auto i, Lanes<T> column) __attribute__((always_inline)) {
      unrolled<Rows>([&](auto r) __attribute__((always_inline)) {
        sum[r()][group()] = multiply_add<T>(from[r() * x_stride + i()], column, sum[r()][group()]);
      });
    };
  };
  const auto span = [&](Index k) __attribute__((always_inline)) {
    if constexpr (kMultipliesByLane) {
      Lanes<T> left[Rows][kSpan / kWidth];
      unrolled<Rows>([&](auto r) {
        unrolled<kSpan / kWidth>([&](auto i) { left[r()][i()] = load<T>(x + r() * x_stride + k + i() * kWidth); });
      });
      unrolled<kGroups>([&](auto g) __attribute__((always_inline)) {
        Columns::visit(
            rows(g(), k), stride, [&](auto i, Lanes<T> column) __attribute__((always_inline)) {
              unrolled<Rows>([&](auto r) __attribute__((always_inline)) {
                sum[r()][g()] = multiply_add<T>(left[r()][i() / kWidth][i() % kWidth], column, sum[r()][g()]);
              });
            });
      });
    } else {
      unrolled<kGroups>([&](auto g) __attribute__((always_inline)) {
        // Hides from the compiler that all groups read the same x: cached in registers, it would spill the sums.
        const T* from = x + k;
        asm volatile("" : "+r"(from));
        Columns::visit(rows(g(), k), stride, add(from, g));
      });
    }
  };
  // Prefetches along the rows of the next panel, as one row if they are contiguous: sequential lines stream fastest.
  const std::byte *row_ahead = weight + ahead, *line_ahead = row_ahead;
  const Index row_bytes = stride == inner * Columns::kBytes ? kPanel<T> * stride : inner * Columns::kBytes;
  Index k = 0;
  for (; k + kLineSpan <= inner; k += kLineSpan) {
    for (Index i = 0; i < kPanel<T>; ++i, line_ahead += kLine) __builtin_prefetch(line_ahead, 0, 2);
    if (line_ahead - row_ahead >= row_bytes) line_ahead = row_ahead += stride;
#pragma GCC unroll 1
    for (Index i = 0; i < kLineSpan; i += kSpan) span(k + i);
  }
  for (; k + kSpan <= inner; k += kSpan) span(k);
  if (k < inner) {
    unrolled<kGroups>([&](auto g) { Columns::visit_part(rows(g(), k), stride, kLanes<T>, inner - k, add(x + k, g)); });
  }
  unrolled<Rows>([&](auto r) {
    unrolled<kGroups>([&](auto g) { store<T>(sums + r() * kPanel<T> + g() * kLanes<T>, sum[r()][g()]); });
  });
}

// A panel of one weight: rows [first, first + kPanel). Rows before `fresh` belong to the previous panel's results.
struct Panel {
  const Weight* weight;
  Index column;  // column of the result for the weight's first row
  Index first, fresh;
  bool another;  // a whole panel follows
};

template <class T>
Index panels(const Weight& weight) {
  return (weight.rows + kPanel<T> - 1) / kPanel<T>;
}

template <class T>
Panel find(std::span<const Weight> weights, Index panel) {
  Index column = 0;
  for (const Weight& weight : weights) {
    if (panel < panels<T>(weight)) {
      const Index fresh = panel * kPanel<T>;
      const Index first = std::min(fresh, std::max<Index>(0, weight.rows - kPanel<T>));
      return {&weight, column, first, fresh, fresh + 2 * kPanel<T> <= weight.rows};
    }
    panel -= panels<T>(weight);
    column += weight.rows;
  }
  ESSH_ASSERT(false);
  return {};
}

template <class T, Format format>
void multiply(Stream& stream, int thread, Matrix<const T> x, const Panel& panel, const ProductResult<T>& result) {
  constexpr Index kBytes = WeightColumns<T, format>::kBytes;
  const Weight& weight = *panel.weight;
  Scratch scratch(stream, thread);
  const std::byte* rows = weight.row(panel.first);
  Index stride = weight.stride * kBytes;
  if (weight.rows < kPanel<T> && x.cols > 0) {
    std::byte* padded = scratch.take<std::byte>(kPanel<T> * x.cols * kBytes);
    for (Index r = 0; r < kPanel<T>; ++r)
      std::memcpy(padded + r * x.cols * kBytes, weight.row(std::min(r, weight.rows - 1)),
                  static_cast<std::size_t>(x.cols * kBytes));
    rows = padded;
    stride = x.cols * kBytes;
  }
  const Index ahead = panel.another ? kPanel<T> * stride : 0;
  const Index count = std::min(kPanel<T>, weight.rows - panel.fresh);
  T sums[kTogether * kPanel<T>];
  for (Index r = 0; r < x.rows;) {
    const auto take = [&]<int Rows>() {
      panel_products<T, format, Rows>(x.row(r), x.stride, rows, stride, x.cols, r == 0 ? ahead : 0, sums);
      for (int i = 0; i < Rows; ++i)
        result.finish(r + i, panel.column + panel.fresh, count, sums + i * kPanel<T> + panel.fresh - panel.first);
      r += Rows;
    };
    const Index left = std::min<Index>(kTogether, x.rows - r);
    // As many as are left, if the sums fit in the registers.
    unrolled<kTogether>([&](auto more) {
      if (left == more() + 1) take.template operator()<more() + 1>();
    });
  }
}

}  // namespace

template <class T>
void few_rows(Stream& stream, Matrix<const T> x, std::span<const Weight> weights, const ProductResult<T>& result) {
  Index all = 0;
  for (const Weight& weight : weights) all += panels<T>(weight);
  stream.pool().split(all, [&](Index begin, Index end, int thread) {
    for (Index i = begin; i < end; ++i) {
      const Panel panel = find<T>(weights, i);
      with_format<T>(panel.weight->format,
                     [&](auto format) { multiply<T, decltype(format)::value>(stream, thread, x, panel, result); });
    }
  });
}

template void few_rows(Stream&, Matrix<const float>, std::span<const Weight>, const ProductResult<float>&);
template void few_rows(Stream&, Matrix<const double>, std::span<const Weight>, const ProductResult<double>&);

}  // namespace essh::cpu
