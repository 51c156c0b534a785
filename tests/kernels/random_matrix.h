#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "essh/base/rng.h"
#include "essh/tensor/matrix.h"

namespace essh {

// A matrix with a stride wider than its columns; the padding holds NaN, so that an out-of-bounds read shows.
template <class T>
struct StridedMatrix {
  std::vector<T> storage;
  Matrix<T> view;

  StridedMatrix(Index rows, Index cols, Index gap = 3)
      : storage(static_cast<std::size_t>(rows * (cols + gap)), T(NAN)) {
    view = {storage.data(), rows, cols, cols + gap};
    fill([] { return 0.0; });
  }
  StridedMatrix(const StridedMatrix& other) : storage(other.storage), view(other.view) { view.data = storage.data(); }
  StridedMatrix& operator=(const StridedMatrix&) = delete;

  template <class Draw>
  StridedMatrix& fill(const Draw& draw) {
    for (Index r = 0; r < view.rows; ++r) {
      for (Index c = 0; c < view.cols; ++c) view(r, c) = static_cast<T>(draw());
    }
    return *this;
  }
  StridedMatrix& normal(Rng& rng, double scale = 1, double shift = 0) {
    return fill([&] { return shift + scale * rng.normal(); });
  }
  StridedMatrix& uniform(Rng& rng, double low, double high) {
    return fill([&] { return low + (high - low) * rng.uniform(); });
  }

  // Row 0 as a vector.
  Vector<T> vector() const { return {view.data, view.cols}; }
  // Columns [first, first + count) of a row, converted for a reference.
  template <class S = double>
  std::vector<S> row(Index r, Index first, Index count) const {
    std::vector<S> values;
    for (Index c = 0; c < count; ++c) values.push_back(static_cast<double>(view(r, first + c)));
    return values;
  }
  template <class S = double>
  std::vector<S> row(Index r) const {
    return row<S>(r, 0, view.cols);
  }
  // One pointer per row.
  std::vector<T*> rows() const {
    std::vector<T*> pointers;
    for (Index r = 0; r < view.rows; ++r) pointers.push_back(view.row(r));
    return pointers;
  }
  bool gap_is_intact() const {
    for (Index r = 0; r < view.rows; ++r) {
      for (Index c = view.cols; c < view.stride; ++c) {
        if (!std::isnan(view(r, c))) return false;
      }
    }
    return true;
  }
};

}  // namespace essh
