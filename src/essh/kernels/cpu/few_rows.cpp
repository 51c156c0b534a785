#include "essh/kernels/cpu/few_rows.h"

#include "essh/kernels/cpu/weight_columns.h"

namespace essh::cpu {
namespace {

// Rows of a weight that are multiplied together: two vectors of them, so that one chain of additions need not wait for
// itself.
constexpr int kGroups = 2;
template <class T>
constexpr Index kPanel = kGroups* kLanes<T>;
constexpr Index kLine = 64;  // bytes of a cache line
#ifdef __aarch64__
constexpr bool kMultipliesByLane = true;  // of another vector, without a load
#else
constexpr bool kMultipliesByLane = false;
#endif
constexpr Index kTogether = 4;  // rows of x

// sums[Rows][kPanel] = the products of Rows rows of x with kPanel rows of a weight. Strides in elements of x, in bytes
// of the weight. The lines `ahead` bytes further on are fetched into the second-level cache.
template <class T, Format format, int Rows>
void panel_products(const T* x, Index x_stride, const std::byte* weight, Index stride, Index inner, Index ahead,
                    T* sums) {
  using Columns = WeightColumns<T, format>;
  constexpr Index kSpan = Columns::kSpan, kLineSpan = kLine / Columns::kBytes;
  Lanes<T> sum[Rows][kGroups] = {};
  typename Columns::Columns columns;
  const auto add = [&](Index k, int group, Index count) {
    for (Index i = 0; i < count; ++i) {
      for (int r = 0; r < Rows; ++r) sum[r][group] += x[r * x_stride + k + i] * columns[i];
    }
  };
  const auto span = [&](Index k) {
    for (int g = 0; g < kGroups; ++g) {
      Columns::load(weight + g * kLanes<T> * stride + k * Columns::kBytes, stride, columns);
      if constexpr (kMultipliesByLane) {
        for (int r = 0; r < Rows; ++r) {
          for (Index i = 0; i < kSpan; i += kLanes<T>) {
            const auto left = load<T>(x + r * x_stride + k + i);
            for (Index lane = 0; lane < kLanes<T>; ++lane) sum[r][g] += left[lane] * columns[i + lane];
          }
        }
      } else {
        add(k, g, kSpan);
      }
    }
  };
  Index k = 0;
  for (; k + kLineSpan <= inner; k += kLineSpan) {
    for (Index r = 0; r < kPanel<T>; ++r) __builtin_prefetch(weight + ahead + r * stride + k * Columns::kBytes, 0, 2);
#pragma GCC unroll 1
    for (Index i = 0; i < kLineSpan; i += kSpan) span(k + i);
  }
  for (; k + kSpan <= inner; k += kSpan) span(k);
  if (k < inner) {
    for (int g = 0; g < kGroups; ++g) {
      Columns::load_part(weight + g * kLanes<T> * stride + k * Columns::kBytes, stride, kLanes<T>, inner - k, columns);
      add(k, g, inner - k);
    }
  }
  for (int r = 0; r < Rows; ++r) {
    for (int g = 0; g < kGroups; ++g) store<T>(sums + r * kPanel<T> + g * kLanes<T>, sum[r][g]);
  }
}

// A panel of one weight: rows [first, first + kPanel), of which those from `fresh` on are results of its own.
struct Panel {
  const Weight* weight;
  Index column;  // of the weight's first row in the result
  Index first, fresh;
  bool another;  // below it
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
  if (weight.rows < kPanel<T>) {
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
    switch (x.rows - r) {
      case 1:
        take.template operator()<1>();
        break;
      case 2:
        take.template operator()<2>();
        break;
      case 3:
        take.template operator()<3>();
        break;
      default:
        take.template operator()<kTogether>();
        break;
    }
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
