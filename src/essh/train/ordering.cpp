#include "essh/train/ordering.h"

#include <algorithm>
#include <numeric>

namespace essh {
namespace {

void permute_rows(Matrix<float> m, const std::vector<Index>& order) {
  std::vector<float> sorted;
  sorted.reserve(static_cast<std::size_t>(m.rows * m.cols));
  for (const Index from : order) sorted.insert(sorted.end(), m.row(from), m.row(from) + m.cols);
  std::copy(sorted.begin(), sorted.end(), m.data);
}

void permute_columns(Matrix<float> m, const std::vector<Index>& order) {
  std::vector<float> sorted(order.size());
  for (Index r = 0; r < m.rows; ++r) {
    for (std::size_t c = 0; c < order.size(); ++c) sorted[c] = m(r, order[c]);
    std::copy(sorted.begin(), sorted.end(), m.row(r));
  }
}

}  // namespace

void order_units(const ParameterLayout& layout, std::span<float> weights, std::span<const std::span<float>> companions,
                 Matrix<double> squares) {
  for (Index layer = 0; layer < squares.rows; ++layer) {
    const auto gate = layout.find(layer, "mlp.gate_proj.weight"), up = layout.find(layer, "mlp.up_proj.weight"),
               down = layout.find(layer, "mlp.down_proj.weight");
    const auto view = [&](std::span<float> flat, std::size_t tensor) {
      return dense(flat.data() + layout.offset(tensor), layout.tensors()[tensor].rows, layout.tensors()[tensor].cols);
    };
    const auto columns = view(weights, down);
    std::vector<double> importance(static_cast<std::size_t>(squares.cols), 0.0);
    for (Index r = 0; r < columns.rows; ++r) {
      for (Index c = 0; c < columns.cols; ++c)
        importance[static_cast<std::size_t>(c)] +=
            static_cast<double>(columns(r, c)) * static_cast<double>(columns(r, c));
    }
    for (Index c = 0; c < squares.cols; ++c) importance[static_cast<std::size_t>(c)] *= squares(layer, c);
    std::vector<Index> order(importance.size());
    std::iota(order.begin(), order.end(), Index{0});
    std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) {
      return importance[static_cast<std::size_t>(a)] > importance[static_cast<std::size_t>(b)];
    });

    std::vector<std::span<float>> flats = {weights};
    flats.insert(flats.end(), companions.begin(), companions.end());
    for (const auto flat : flats) {
      permute_rows(view(flat, gate), order);
      permute_rows(view(flat, up), order);
      permute_columns(view(flat, down), order);
    }
    std::vector<double> moved;
    for (const Index from : order) moved.push_back(squares(layer, from));
    std::copy(moved.begin(), moved.end(), squares.row(layer));
  }
}

}  // namespace essh
