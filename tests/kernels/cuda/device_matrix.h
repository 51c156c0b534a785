#pragma once
#include <gtest/gtest.h>

#include <cstring>

#include "essh/device/stream.h"
#include "tests/kernels/cuda/cases.h"
#include "tests/kernels/random_matrix.h"

namespace essh {

// Layout of a matrix: rows of whole 16-byte pieces, or an address and stride that are not multiples of 16 bytes.
enum class Layout { Aligned, Misaligned };

// A matrix on the GPU with a stride wider than its columns; the padding holds NaN, so that an out-of-bounds read shows.
// Values are exchanged as double, rounded to T.
template <class T>
class DeviceMatrix {
 public:
  DeviceMatrix(cuda::Stream& stream, Index rows, Index cols, Layout layout = Layout::Aligned)
      : stream_(&stream),
        offset_(layout == Layout::Aligned ? 8 : 1),
        cols_(cols),
        stride_(layout == Layout::Aligned ? (cols + 23) / 8 * 8 : cols + 3),
        host_(static_cast<std::size_t>(offset_ + rows * stride_), T(NAN)),
        device_(Device::Cuda, static_cast<Index>(host_.size()), "a test") {
    upload();
  }

  Matrix<T> view() const { return {device_.data() + offset_, rows(), cols_, stride_}; }

  // Uploads `values` and rounds them to T in place.
  DeviceMatrix& set(StridedMatrix<double>& values) {
    for (Index r = 0; r < rows(); ++r) {
      for (Index c = 0; c < cols_; ++c) {
        T& element = at(r, c) = T(static_cast<float>(values.view(r, c)));
        values.view(r, c) = static_cast<double>(static_cast<float>(element));
      }
    }
    upload();
    return *this;
  }
  StridedMatrix<double> get() {
    download();
    StridedMatrix<double> values(rows(), cols_, 0);
    for (Index r = 0; r < rows(); ++r) {
      for (Index c = 0; c < cols_; ++c) values.view(r, c) = static_cast<double>(static_cast<float>(at(r, c)));
      for (Index c = cols_; c < stride_; ++c)
        EXPECT_TRUE(std::isnan(static_cast<float>(at(r, c)))) << "gap of row " << r;
    }
    return values;
  }
  // The raw memory, padding included.
  std::vector<std::byte> bits() {
    download();
    std::vector<std::byte> all(host_.size() * sizeof(T));
    if (!all.empty()) std::memcpy(all.data(), host_.data(), all.size());
    return all;
  }

 private:
  Index rows() const { return (static_cast<Index>(host_.size()) - offset_) / stride_; }
  T& at(Index r, Index c) { return host_[static_cast<std::size_t>(offset_ + r * stride_ + c)]; }
  void upload() {
    stream_->copy(device_.data(), host_.data(), host_.size() * sizeof(T));
    stream_->wait();
  }
  void download() {
    stream_->copy(host_.data(), device_.data(), host_.size() * sizeof(T));
    stream_->wait();
  }

  cuda::Stream* stream_;
  Index offset_, cols_, stride_;
  std::vector<T> host_;
  Array<T> device_;
};

// Largest distance between two rows of one head, relative to the larger of that row's norm and the typical norm; rows
// whose elements are below `least` are considered cancelled.
inline double relative_error(const StridedMatrix<double>& x, const StridedMatrix<double>& exact, Index head_dim,
                             double least = 1e-15) {
  double squares = 0;
  for (const double e : exact.storage) squares += e * e;
  const double usual = std::max(squares / static_cast<double>(exact.view.rows * (exact.view.cols / head_dim)),
                                least * least * static_cast<double>(head_dim));
  double worst = 0;
  for (Index r = 0; r < x.view.rows; ++r) {
    for (Index first = 0; first < x.view.cols; first += head_dim) {
      double distance = 0, size = 0;
      for (Index c = first; c < first + head_dim; ++c) {
        const double difference = x.view(r, c) - exact.view(r, c);
        distance += difference * difference;
        size += exact.view(r, c) * exact.view(r, c);
      }
      const double error = std::sqrt(distance / std::max(size, usual));
      worst = std::isnan(error) ? INFINITY : std::max(worst, error);
    }
  }
  return worst;
}

// The types of CUDA kernels, and the tolerance relative to double. Half of the tolerance of float is the rounding of
// scores: sums of 64 products of about two, exponentiated.
using CudaTypes = ::testing::Types<BFloat16, float>;
template <class T>
inline constexpr double kCudaTolerance = 1e-2;
template <>
inline constexpr double kCudaTolerance<float> = 4e-6;

// Tests of this fixture are skipped without a GPU.
class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
    stream_ = std::make_unique<cuda::Stream>();
  }
  cuda::Stream& stream() { return *stream_; }

 private:
  std::unique_ptr<cuda::Stream> stream_;
};

}  // namespace essh
