#include "essh/kernels/cpu/few_rows.h"

#include "essh/kernels/cpu/small_gemm.h"
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
// With more rows of x, a panel's columns are first widened, once for all of them; not on ARM, where that has not been
// measured.
constexpr Index kMostInPlace = kMultipliesByLane ? kFewRows : kTogether;
constexpr Index kPiece = 64;                                  // columns widened at a time
constexpr int kTogetherWidened = kVectorBytes < 64 ? 6 : 12;  // rows of x multiplied together by widened columns

// Prefetches a panel into the second-level cache along its rows, as one row if they are contiguous: sequential lines
// stream fastest.
struct Ahead {
  const std::byte *row, *line;
  Index row_bytes, stride;

  template <Index count>
  __attribute__((always_inline)) void lines() {
    for (Index i = 0; i < count; ++i, line += kLine) __builtin_prefetch(line, 0, 2);
    if (line - row >= row_bytes) line = row += stride;
  }
};
template <class T, Format format>
Ahead panel_ahead(const std::byte* panel, Index stride, Index inner) {
  constexpr Index kBytes = WeightColumns<T, format>::kBytes;
  return {panel, panel, stride == inner * kBytes ? kPanel<T> * stride : inner * kBytes, stride};
}

// sums[Rows][kPanel] = products of Rows rows of x with kPanel rows of a weight. x_stride is in elements, `stride` in
// bytes. Prefetches the panel `ahead` bytes further on into the second-level cache. Elsewhere than on ARM the rows of x
// lie column by column, at any x_stride: rows would take a register each, for every column of a span.
template <class T, Format format, int Rows>
__attribute__((noinline)) void panel_products(const T* x, Index x_stride, const std::byte* weight, Index stride,
                                              Index inner, Index ahead, T* sums) {
  using Columns = WeightColumns<T, format>;
  constexpr Index kSpan = Columns::kSpan, kLineSpan = kLine / Columns::kBytes;
  constexpr int kWidth = static_cast<int>(kLanes<T>);
  Lanes<T> sum[Rows][kGroups];
  unrolled<Rows>([&](auto r) { unrolled<kGroups>([&](auto g) { sum[r()][g()] = Lanes<T>{}; }); });
  constexpr Index kColumn = kMultipliesByLane ? 1 : Rows;
  const Index row = kMultipliesByLane ? x_stride : 1;
  const auto rows = [&](int group, Index k) { return weight + group * kLanes<T> * stride + k * Columns::kBytes; };
  const auto add = [&](const T* from, auto group) __attribute__((always_inline)) {
    return [&, from, group ](auto i, Lanes<T> column) __attribute__((always_inline)) {
      unrolled<Rows>([&](auto r) __attribute__((always_inline)) {
        sum[r()][group()] = multiply_add<T>(from[r() * row + i() * kColumn], column, sum[r()][group()]);
      });
    };
  };
  const auto span = [&](Index k) __attribute__((always_inline)) {
    if constexpr (kMultipliesByLane) {
      Lanes<T> left[Rows][kSpan / kWidth];
      unrolled<Rows>([&](auto r) {
        unrolled<kSpan / kWidth>([&](auto i) { left[r()][i()] = load<T>(x + r() * row + k + i() * kWidth); });
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
        const T* from = x + k * kColumn;
        asm volatile("" : "+r"(from));
        Columns::visit(rows(g(), k), stride, add(from, g));
      });
    }
  };
  auto next = panel_ahead<T, format>(weight + ahead, stride, inner);
  Index k = 0;
  for (; k + kLineSpan <= inner; k += kLineSpan) {
    next.template lines<kPanel<T>>();
#pragma GCC unroll 1
    for (Index i = 0; i < kLineSpan; i += kSpan) span(k + i);
  }
  for (; k + kSpan <= inner; k += kSpan) span(k);
  if (k < inner) {
    unrolled<kGroups>(
        [&](auto g) { Columns::visit_part(rows(g(), k), stride, kLanes<T>, inner - k, add(x + k * kColumn, g)); });
  }
  unrolled<Rows>([&](auto r) {
    unrolled<kGroups>([&](auto g) { store<T>(sums + r() * kPanel<T> + g() * kLanes<T>, sum[r()][g()]); });
  });
}

// tile[count][kPanel] = `count` columns of a panel, at most kPiece. Lines are copied whole: those of rows whose stride
// is a power of two would push each other out of the cache between the parts of a line.
template <class T, Format format>
__attribute__((noinline)) void widen_columns(const std::byte* weight, Index stride, Index count, Ahead& next, T* tile) {
  using Columns = WeightColumns<T, format>;
  constexpr Index kSpan = Columns::kSpan, kLineSpan = kLine / Columns::kBytes, kCopied = kLine + 16;
  const auto to = [&](int group, Index k) {
    return [place = tile + k * kPanel<T> + group * kLanes<T>](auto i, Lanes<T> column) __attribute__((always_inline)) {
      store<T>(place + i() * kPanel<T>, column);
    };
  };
  const auto rows = [&](int group, Index k) { return weight + group * kLanes<T> * stride + k * Columns::kBytes; };
  alignas(kLine) std::byte lines[kLanes<T> * kCopied];
  Index k = 0;
  for (; k + kLineSpan <= count; k += kLineSpan) {
    next.template lines<kPanel<T>>();
    for (int g = 0; g < kGroups; ++g) {
      unrolled<static_cast<int>(kLanes<T>)>(
          [&](auto r) { std::memcpy(lines + r() * kCopied, rows(g, k) + r() * stride, kLine); });
      for (Index i = 0; i < kLineSpan; i += kSpan) Columns::visit(lines + i * Columns::kBytes, kCopied, to(g, k + i));
    }
  }
  for (; k < count; k += kSpan) {
    for (int g = 0; g < kGroups; ++g)
      Columns::visit_part(rows(g, k), stride, kLanes<T>, std::min(kSpan, count - k), to(g, k));
  }
}

// sums[Rows][kPanel] += a piece of `count` columns of Rows rows of x, which lie column by column, times a tile.
template <class T, int Rows>
__attribute__((noinline)) void add_piece(const T* x, const T* tile, Index count, T* sums) {
  detail::tile<T, Rows, kGroups, kVectorBytes, Into::Add>(Sliver<T>{x}, tile, kPanel<T>, sums, kPanel<T>, 0, count);
}

// Rows of x in groups of nearly equal size, `most` rows or fewer. Calls body.operator()<count>(first) for each.
template <int most, class Body>
void each_group(Index rows, const Body& body) {
  for (Index first = 0, groups = (rows + most - 1) / most; groups > 0; --groups) {
    const Index count = (rows - first + groups - 1) / groups;
    unrolled<most>([&](auto more) {
      if (count == more() + 1) body.template operator()<more() + 1>(first);
    });
    first += count;
  }
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

// columns: the groups of rows of x (each_group), each column by column; null on ARM and for a single row.
template <class T, Format format>
void multiply(Stream& stream, int thread, Matrix<const T> x, const T* columns, const Panel& panel,
              const ProductResult<T>& result) {
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
  const auto finish = [&](Index row, const T* sums) {
    result.finish(row, panel.column + panel.fresh, count, sums + panel.fresh - panel.first);
  };
  T sums[kFewRows * kPanel<T>];
  if (x.rows <= kMostInPlace) {
    each_group<kTogether>(x.rows, [&]<int Rows>(Index first) {
      const T* const left = columns ? columns + first * x.cols : x.row(first);
      panel_products<T, format, Rows>(left, x.stride, rows, stride, x.cols, first == 0 ? ahead : 0, sums);
      for (Index r = 0; r < Rows; ++r) finish(first + r, sums + r * kPanel<T>);
    });
    return;
  }
  alignas(kLine) T tile[kPiece * kPanel<T>];
  std::fill_n(sums, x.rows * kPanel<T>, T(0));
  auto next = panel_ahead<T, format>(rows + ahead, stride, x.cols);
  for (Index k = 0; k < x.cols; k += kPiece) {
    const Index piece = std::min(kPiece, x.cols - k);
    widen_columns<T, format>(rows + k * kBytes, stride, piece, next, tile);
    each_group<kTogetherWidened>(x.rows, [&]<int Rows>(Index first) {
      add_piece<T, Rows>(columns + first * x.cols + k * Rows, tile, piece, sums + first * kPanel<T>);
    });
  }
  for (Index r = 0; r < x.rows; ++r) finish(r, sums + r * kPanel<T>);
}

}  // namespace

template <class T>
void few_rows(Stream& stream, Matrix<const T> x, std::span<const Weight> weights, const ProductResult<T>& result) {
  Index all = 0;
  for (const Weight& weight : weights) all += panels<T>(weight);
  Scratch scratch(stream, 0);
  T* const columns = kMultipliesByLane || x.rows == 1 ? nullptr : scratch.take<T>(x.rows * x.cols);
  if (columns) {
    const auto copy = [&]<int Rows>(Index first) {
      T* const to = columns + first * x.cols;
      for (Index r = 0; r < Rows; ++r)
        for (Index k = 0; k < x.cols; ++k) to[k * Rows + r] = x.row(first + r)[k];
    };
    if (x.rows <= kMostInPlace)
      each_group<kTogether>(x.rows, copy);
    else
      each_group<kTogetherWidened>(x.rows, copy);
  }
  stream.pool().split(all, [&](Index begin, Index end, int thread) {
    for (Index i = begin; i < end; ++i) {
      const Panel panel = find<T>(weights, i);
      with_format<T>(panel.weight->format, [&](auto format) {
        multiply<T, decltype(format)::value>(stream, thread, x, columns, panel, result);
      });
    }
  });
}

template void few_rows(Stream&, Matrix<const float>, std::span<const Weight>, const ProductResult<float>&);
template void few_rows(Stream&, Matrix<const double>, std::span<const Weight>, const ProductResult<double>&);

}  // namespace essh::cpu
