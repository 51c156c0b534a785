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
#include "essh/kernels/normed_linear.h"

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
  Index place;  // of its weights in those of a layer
  double bytes() const { return static_cast<double>(outputs * inputs * 2 * (gated ? 2 : 1)); }
};
constexpr Index kMixerRows = 2816;
constexpr std::array<Product, 4> kProducts = {
    {{"projections", kMixerRows, kWidth, false, 0},
     {"output", kWidth, kWidth, false, kMixerRows* kWidth},
     {"gate and up", kUnits, kWidth, true, (kMixerRows + kWidth) * kWidth},
     {"down", kWidth, kUnits, false, (kMixerRows + kWidth + 2 * kUnits) * kWidth}}};
constexpr Index kLayerWeights = (kMixerRows + kWidth + 3 * kUnits) * kWidth;

class Bench {
 public:
  Bench()
      : weights_(Device::Cuda, kLayers * kLayerWeights, "weights"),
        x_(Device::Cuda, kMostRows * kUnits, "x"),
        y_(Device::Cuda, kMostRows * 2 * kUnits, "y"),
        residual_(Device::Cuda, kMostRows * kWidth, "residual"),
        normed_(Device::Cuda, kMostRows * kWidth, "normed residual"),
        gain_(Device::Cuda, kWidth, "gain"),
        squares_(Device::Cuda, NextNorm<B>::kMostParts * kMostRows, "squares"),
        next_{.gain = gain_.view(), .y = dense(normed_.data(), 1, kWidth), .squares = {}} {
    // Random: with equal values, tensor cores draw less power and run faster.
    Rng rng(1);
    std::vector<B> drawn;
    for (int i = 0; i < 1 << 20; ++i) drawn.push_back(B(static_cast<float>(rng.normal()) * 0.02f));
    for (auto* const to : {&weights_, &x_, &y_, &residual_, &normed_}) {
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
      for (const auto& product : kProducts) multiply(product, rows, layer, true);
    });
  }

 private:
  // With norms: those before the products of a block's input, begun by the product before where it does that.
  void multiply(const Product& p, Index rows, Index layer, bool norms = false) {
    const std::vector<Weight> weights{
        dense(weights_.data() + layer * kLayerWeights + p.place, p.outputs * (p.gated ? 2 : 1), p.inputs)};
    const auto x = dense(x_.data(), rows, p.inputs), y = dense(y_.data(), rows, weights[0].rows),
               residual = dense(residual_.data(), rows, kWidth);
    Linear<B> linear{.x = x, .weights = weights, .y = y};
    if (p.outputs == kWidth) {
      linear.y = residual;
      linear.addend = residual;
      next_ = {.gain = gain_.view(),
               .y = dense(normed_.data(), rows, kWidth),
               .squares = dense(squares_.data(), NextNorm<B>::kMostParts, rows)};
      if (norms) linear.next = &next_;
      return run(stream_, linear);
    }
    const RmsNormForward<B> norm{.x = residual, .gain = next_.gain, .y = next_.y, .inverse_rms = {}, .eps = 1e-6};
    if (norms) linear.x = norm.y;
    const GatedLinear<B> gated{.both = linear, .hidden = y.left(p.outputs)};
    if (norms && p.gated)
      run(stream_, NormedGatedLinear<B>{.norm = norm, .gated = gated, .begun = next_});
    else if (norms)
      run(stream_, NormedLinear<B>{.norm = norm, .linear = linear, .begun = next_});
    else if (p.gated)
      run(stream_, gated);
    else
      run(stream_, linear);
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
  Array<B> weights_, x_, y_, residual_, normed_;
  Array<float> gain_, squares_;
  NextNorm<B> next_;  // of the residual
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
