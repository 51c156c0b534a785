// Products of decoding steps, us per launch in a CUDA graph of launches whose weights are not in the cache.
// usage: cuda_few_rows [ROWS...]
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "essh/device/cuda/check.h"
#include "essh/kernels/cuda/few_row_product.h"
#include "essh/kernels/linear.h"
#include "essh/kernels/rms_norm.h"

namespace essh {
namespace {

using cuda::check;
using B = BFloat16;

constexpr Index kLayers = 24, kWidth = 2048, kUnits = 5632, kMostRows = 128;

struct Product {
  const char* name;
  Index outputs, inputs;
  bool gated;
  double bytes() const { return static_cast<double>(outputs * inputs * 2 * (gated ? 2 : 1)); }
};
constexpr Product kProducts[] = {{"projections", 2816, kWidth, false},
                                 {"output", kWidth, kWidth, false},
                                 {"gate and up", kUnits, kWidth, true},
                                 {"down", kWidth, kUnits, false}};

class Bench {
 public:
  Bench()
      : weights_(Device::Cuda, kLayers * 2 * kUnits * kWidth, "weights"),
        x_(Device::Cuda, kMostRows * kUnits, "x"),
        y_(Device::Cuda, kMostRows * kUnits, "y"),
        gain_(Device::Cuda, kWidth, "gain") {
    check(cudaMemset(weights_.data(), 0, static_cast<std::size_t>(weights_.size()) * 2), "memset");
    check(cudaMemset(x_.data(), 0, static_cast<std::size_t>(x_.size()) * 2), "memset");
    check(cudaMemset(y_.data(), 0, static_cast<std::size_t>(y_.size()) * 2), "memset");
    check(cudaEventCreate(&start_), "event");
    check(cudaEventCreate(&end_), "event");
  }

  cuda::FewRowProduct<B> product(const Product& p, Index rows, Index layer) {
    B* const at = weights_.data() + layer * 2 * kUnits * kWidth;
    const auto weight = dense(at, p.outputs, p.inputs), up = dense(at + p.outputs * p.inputs, p.outputs, p.inputs);
    const auto y = dense(y_.data(), rows, p.outputs);
    return {.x = dense(x_.data(), rows, p.inputs),
            .weight = weight,
            .up = p.gated ? Matrix<const B>(up) : Matrix<const B>(),
            .y = y,
            .addend = p.outputs == kWidth ? Matrix<const B>(y) : Matrix<const B>()};
  }

  // us per layer
  template <class Body>
  double time(const Body& body) {
    const cuda::Graph graph(stream_, [&] {
      for (Index layer = 0; layer < kLayers; ++layer) body(layer);
    });
    double best = 1e9;
    for (int i = 0; i < 6; ++i) {
      check(cudaEventRecord(start_, stream_.handle()), "event");
      graph.replay(stream_);
      check(cudaEventRecord(end_, stream_.handle()), "event");
      check(cudaEventSynchronize(end_), "product");
      float ms = 0;
      check(cudaEventElapsedTime(&ms, start_, end_), "event");
      best = std::min(best, static_cast<double>(ms));
    }
    return best * 1e3 / kLayers;
  }

  void norm(Index rows) {
    run(stream_, RmsNormForward<B>{.x = dense(y_.data(), rows, kWidth),
                                   .gain = {gain_.data(), kWidth},
                                   .y = dense(x_.data(), rows, kWidth),
                                   .inverse_rms = {},
                                   .eps = 1e-6});
  }

  void measure(Index rows) {
    const auto multiply = [&](std::size_t i, Index layer) {
      cuda::multiply_few_rows(stream_, product(kProducts[i], rows, layer));
    };
    for (std::size_t i = 0; i < 4; ++i) {
      const double us = time([&](Index layer) { multiply(i, layer); });
      fmt::print("{:4} rows, {:12} {:6.2f} us {:5.2f} TB/s\n", rows, kProducts[i].name, us,
                 kProducts[i].bytes() / us / 1e6);
    }
    fmt::print("{:4} rows, one after the other {:6.2f} us, with norms {:6.2f} us\n", rows, time([&](Index layer) {
                 for (std::size_t i = 0; i < 4; ++i) multiply(i, layer);
               }),
               time([&](Index layer) {
                 for (std::size_t i = 0; i < 4; ++i) {
                   if (i % 2 == 0) norm(rows);
                   multiply(i, layer);
                 }
               }));
    std::fflush(stdout);
  }

 private:
  cuda::Stream stream_;
  Array<B> weights_, x_, y_;
  Array<float> gain_;
  cudaEvent_t start_ = nullptr, end_ = nullptr;
};

}  // namespace
}  // namespace essh

int main(int argc, char** argv) {
  essh::Bench bench;
  std::vector<essh::Index> rows;
  for (int i = 1; i < argc; ++i) rows.push_back(std::atoi(argv[i]));
  if (rows.empty()) rows = {16, 128};
  for (const auto count : rows) bench.measure(count);
}
