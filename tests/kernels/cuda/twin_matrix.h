#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "essh/device/stream.h"
#include "tests/kernels/cuda/cases.h"
#include "tests/kernels/random_matrix.h"

namespace essh {

// Skips a test without a GPU.
#define ESSH_NEEDS_GPU() \
  if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU"

inline cuda::Stream& gpu() {
  static cuda::Stream stream;
  return stream;
}
// All products are cuBLASLt's while this lives.
struct WithoutOwnProducts {
  WithoutOwnProducts() { gpu().set_own_products(false); }
  ~WithoutOwnProducts() { gpu().set_own_products(true); }
};
inline cpu::Stream& host() {
  static cpu::Stream stream(2);
  return stream;
}

using TwinTypes = ::testing::Types<float, BFloat16>;

// The type of a kernel's arithmetic, and the type of the residual.
template <class T, class X>
struct ResidualTypes {
  using Compute = T;
  using Residual = X;
};
using TwinResidualTypes =
    ::testing::Types<ResidualTypes<float, float>, ResidualTypes<BFloat16, BFloat16>, ResidualTypes<BFloat16, float>>;

// Tolerance of a kernel over T against the CPU in double, relative to the largest element.
template <class T>
inline constexpr double kTwinTolerance = 2e-6;
template <>
inline constexpr double kTwinTolerance<BFloat16> = 8e-3;

// A device copy of a host matrix in T; the host elements are rounded to T first, so that both sides compute from the
// same numbers. Keeps the stride and the NaN in the padding.
template <class T>
class TwinMatrix {
 public:
  explicit TwinMatrix(StridedMatrix<double>& from)
      : rows_(from.view.rows),
        cols_(from.view.cols),
        stride_(from.view.stride),
        memory_(Device::Cuda, std::max<Index>(1, rows_ * stride_), "test"),
        pointers_(Device::Cuda, std::max<Index>(1, rows_), "test") {
    std::vector<T> values;
    for (auto& x : from.storage) {
      values.push_back(T(static_cast<float>(x)));
      x = static_cast<double>(static_cast<float>(values.back()));
    }
    gpu().copy(memory_.data(), values.data(), values.size() * sizeof(T));
    std::vector<T*> pointers;
    for (Index r = 0; r < rows_; ++r) pointers.push_back(view().row(r));
    gpu().copy(pointers_.data(), pointers.data(), pointers.size() * sizeof(T*));
  }

  Matrix<T> view() const { return {memory_.data(), rows_, cols_, stride_}; }
  Vector<T> vector() const { return {memory_.data(), cols_}; }
  // One pointer per row, on the device.
  Vector<T*> rows() const { return pointers_.view(0, rows_); }
  std::vector<T> download() const {
    std::vector<T> values(static_cast<std::size_t>(rows_ * stride_));
    gpu().copy(values.data(), memory_.data(), values.size() * sizeof(T));
    return values;
  }

  // Elements equal `exact` within the tolerance, relative to its largest; the padding is unchanged.
  void expect_close(const StridedMatrix<double>& exact, const char* what, double slack = 1,
                    double tolerance = kTwinTolerance<T>) const {
    const auto values = download();
    double largest = 0, gap = 0;
    bool intact = true;
    for (Index r = 0; r < rows_; ++r) {
      for (Index c = 0; c < stride_; ++c) {
        const auto value = static_cast<double>(static_cast<float>(values[static_cast<std::size_t>(r * stride_ + c)]));
        if (c >= cols_) {
          intact = intact && std::isnan(value);
          continue;
        }
        const double wanted = exact.view(r, c);
        largest = std::max(largest, std::abs(wanted));
        gap = std::isfinite(value) ? std::max(gap, std::abs(value - wanted)) : INFINITY;
      }
    }
    EXPECT_TRUE(intact) << what << " wrote between its rows";
    EXPECT_LE(gap, slack * tolerance * std::max(largest, 1e-3)) << what << ", largest element " << largest;
  }

 private:
  Index rows_, cols_, stride_;
  Array<T> memory_;
  Array<T*> pointers_;
};

template <class T>
class TwinVector {
 public:
  explicit TwinVector(const std::vector<T>& values) : memory_(Device::Cuda, static_cast<Index>(values.size()), "test") {
    gpu().copy(memory_.data(), values.data(), values.size() * sizeof(T));
  }
  Vector<T> view() const { return memory_.view(); }

 private:
  Array<T> memory_;
};

}  // namespace essh
