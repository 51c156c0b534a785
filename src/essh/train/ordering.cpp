#include "essh/train/ordering.h"

#include <algorithm>
#include <numeric>

#include "essh/kernels/clear.h"
#include "essh/kernels/column_squares.h"
#include "essh/kernels/permute.h"

namespace essh {

UnitOrder importance_order(Stream& stream, Arena& arena, const ParameterLayout& layout, Vector<const float> weights,
                           Matrix<const double> squares) {
  const auto mark = arena.mark();
  const auto norms = arena.vector<double>(squares.rows * squares.cols);
  clear(stream, norms);
  for (Index layer = 0; layer < squares.rows; ++layer) {
    const auto down = layout.find(layer, "mlp.down_proj.weight");
    const auto& spec = layout.tensors()[down];
    launch(stream, ColumnSquares<float>{.x = dense(weights.data + layout.offset(down), spec.rows, spec.cols),
                                        .sums = norms.middle(layer * squares.cols, squares.cols)});
  }
  std::vector<double> importance(static_cast<std::size_t>(norms.size));
  download(stream, norms, importance);
  arena.release(mark);

  UnitOrder orders;
  for (Index layer = 0; layer < squares.rows; ++layer) {
    double* scores = importance.data() + layer * squares.cols;
    for (Index unit = 0; unit < squares.cols; ++unit) scores[unit] *= squares(layer, unit);
    auto& order = orders.emplace_back(static_cast<std::size_t>(squares.cols));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return scores[a] > scores[b]; });
  }
  return orders;
}

namespace {

// read(begin, end) gives a range of the flat array, write(begin, end, values) takes it back.
template <class Read, class Write>
void permute_tensors(Stream& stream, Arena& arena, const ParameterLayout& layout, const UnitOrder& order,
                     const Read& read, const Write& write) {
  for (std::size_t tensor = 0; tensor < layout.tensors().size(); ++tensor) {
    const auto& spec = layout.tensors()[tensor];
    const bool rows = spec.row_cut.axis == Axis::Ffn;
    if (!rows && spec.col_cut.axis != Axis::Ffn) continue;
    const auto mark = arena.mark();
    const auto& layer_order = order[static_cast<std::size_t>(spec.layer)];
    const auto indices = arena.vector<std::int32_t>(static_cast<Index>(layer_order.size()));
    upload(stream, layer_order, indices);
    const Index begin = layout.offset(tensor), end = begin + spec.rows * spec.cols;
    const Matrix<const float> from = dense(read(begin, end).data, spec.rows, spec.cols);
    const auto sorted = arena.matrix<float>(spec.rows, spec.cols);
    if (rows)
      launch(stream, PermuteRows<float>{.from = from, .order = indices, .to = sorted});
    else
      launch(stream, PermuteColumns<float>{.from = from, .order = indices, .to = sorted});
    write(begin, end, Vector<const float>{sorted.data, end - begin});
    arena.release(mark);
  }
}

}  // namespace

void order_units(Stream& stream, Arena& arena, const ParameterLayout& layout, const UnitOrder& order,
                 Vector<float> values) {
  permute_tensors(
      stream, arena, layout, order,
      [&](Index begin, Index end) { return Vector<const float>(values.middle(begin, end - begin)); },
      [&](Index begin, Index, Vector<const float> sorted) {
        stream.copy(values.data + begin, sorted.data, static_cast<std::size_t>(sorted.size) * sizeof(float));
      });
}

void order_units(Stream& stream, Arena& arena, const ParameterLayout& layout, const UnitOrder& order, Shards& shards,
                 Vector<float> shares) {
  permute_tensors(
      stream, arena, layout, order, [&](Index begin, Index end) { return shards.whole(shares, begin, end, arena); },
      [&](Index begin, Index end, Vector<const float> sorted) { shards.keep(sorted, begin, end, shares); });
}

void order_units(const UnitOrder& order, Matrix<double> values) {
  std::vector<double> moved(static_cast<std::size_t>(values.cols));
  for (Index layer = 0; layer < values.rows; ++layer) {
    const auto& from = order[static_cast<std::size_t>(layer)];
    std::transform(from.begin(), from.end(), moved.begin(), [&](auto unit) { return values(layer, unit); });
    std::copy(moved.begin(), moved.end(), values.row(layer));
  }
}

}  // namespace essh
