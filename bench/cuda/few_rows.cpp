// Products of decoding steps, ours and cuBLASLt's: us per launch in a CUDA graph whose weights are not in the cache.
// usage: cuda_few_rows [ROWS...]
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <vector>

#include "essh/base/rng.h"
#include "essh/device/cuda/check.h"
#include "essh/kernels/gated_linear.h"
#include "essh/kernels/rms_norm.h"

namespace essh {
namespace {

using cuda::check;
using B = BFloat16;

// Of 1.5b.
constexpr Index kLayers = 24, kWidth = 2048, kUnits = 5632, kMostRows = 1024;

struct Product {
  const char* name;
  Index outputs, inputs;
  bool gated;
  double bytes() const { return static_cast<double>(outputs * inputs * 2 * (gated ? 2 : 1)); }
};
constexpr std::array<Product, 4> kProducts = {{{"projections", 2816, kWidth, false},
                                               {"output", kWidth, kWidth, false},
                                               {"gate and up", kUnits, kWidth, true},
                                               {"down", kWidth, kUnits, false}}};

class Bench {
 public:
  Bench()
      : weights_(Device::Cuda, kLayers * 2 * kUnits * kWidth, "weights"),
        x_(Device::Cuda, kMostRows * kUnits, "x"),
        y_(Device::Cuda, kMostRows * 2 * kUnits, "y"),
        gain_(Device::Cuda, kWidth, "gain") {
    // Random: with equal values, tensor cores draw less power and run faster.
    Rng rng(1);
    std::vector<B> drawn;
    for (int i = 0; i < 1 << 20; ++i) drawn.push_back(B(static_cast<float>(rng.normal()) * 0.02f));
    for (auto* const to : {&weights_, &x_, &y_}) {
      for (Index done = 0; done < to->size(); done += std::ssize(drawn)) {
        const auto count = std::min(std::ssize(drawn), to->size() - done);
        stream_.copy(to->data() + done, drawn.data(), static_cast<std::size_t>(count) * sizeof(B));
      }
    }
    const std::vector<float> ones(kWidth, 1.0f);
    stream_.copy(gain_.data(), ones.data(), ones.size() * sizeof(float));
    check(cudaEventCreate(&start_), "event");
    check(cudaEventCreate(&end_), "event");
  }
  ~Bench() {
    cudaEventDestroy(start_);
    cudaEventDestroy(end_);
  }

  void measure(Index rows) {
    fmt::print("{} rows{:24}ours                cuBLASLt\n", rows, "");
    for (const auto& product : kProducts) {
      print(product.name, product.bytes(), [&](Index layer) { multiply(product, rows, layer); });
    }
    double bytes = 0;
    for (const auto& product : kProducts) bytes += product.bytes();
    print("one after the other", bytes, [&](Index layer) {
      for (const auto& product : kProducts) multiply(product, rows, layer);
    });
    print("the same with norms", bytes, [&](Index layer) {
      for (const auto& product : kProducts) {
        if (product.inputs == kWidth && product.outputs != kWidth) norm(rows);
        multiply(product, rows, layer);
      }
    });
  }

 private:
  void multiply(const Product& p, Index rows, Index layer) {
    const std::vector<Weight> weights{
        dense(weights_.data() + layer * 2 * kUnits * kWidth, p.outputs * (p.gated ? 2 : 1), p.inputs)};
    const auto y = dense(y_.data(), rows, weights[0].rows);
    Linear<B> linear{.x = dense(x_.data(), rows, p.inputs), .weights = weights, .y = y};
    if (p.gated)
      run(stream_, GatedLinear<B>{.both = linear, .hidden = y.left(p.outputs)});
    else if (p.outputs == kWidth)
      run(stream_, Linear<B>{.x = linear.x, .weights = weights, .y = y, .addend = y});
    else
      run(stream_, linear);
  }
  void norm(Index rows) {
    run(stream_, RmsNormForward<B>{.x = dense(y_.data(), rows, kWidth),
                                   .gain = {gain_.data(), kWidth},
                                   .y = dense(x_.data(), rows, kWidth),
                                   .inverse_rms = {},
                                   .eps = 1e-6});
  }

  template <class Body>
  void print(const char* name, double bytes, const Body& body) {
    fmt::print("  {:24}", name);
    for (const bool own : {true, false}) {
      stream_.set_own_products(own);
      const double us = time(body);
      fmt::print("{:6.2f} us {:5.2f} TB/s   ", us, bytes / us / 1e6);
    }
    fmt::print("\n");
    std::fflush(stdout);
  }

  // us per layer; the first call tunes.
  template <class Body>
  double time(const Body& body) {
    body(0);
    stream_.wait();
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

  cuda::Stream stream_;
  Array<B> weights_, x_, y_;
  Array<float> gain_;
  cudaEvent_t start_ = nullptr, end_ = nullptr;
};

}  // namespace
}  // namespace essh

int main(int argc, char** argv) {
  std::vector<essh::Index> rows;
  for (int i = 1; i < argc; ++i) {
    rows.push_back(std::atoi(argv[i]));
    if (rows.back() < 1 || rows.back() > essh::kMostRows) {
      fmt::print(stderr, "usage: cuda_few_rows [ROWS...], each from 1 to {}\n", essh::kMostRows);
      return 2;
    }
  }
  if (rows.empty()) rows = {16, 64, 128};
  essh::Bench bench;
  for (const auto count : rows) bench.measure(count);
}
