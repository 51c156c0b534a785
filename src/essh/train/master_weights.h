#pragma once
#include "essh/kernels/round_weights.h"
#include "essh/model/tensors.h"

namespace essh {

// The weights of a model on a device: float32, plus a rounded copy in the same layout if the model computes in bf16.
// `layout` must outlive them.
template <class T>
class MasterWeights {
  static constexpr bool kRounds = !std::is_same_v<T, float>;

 public:
  MasterWeights(const ParameterLayout& layout, Stream& stream)
      : layout_(layout),
        stream_(stream),
        values_(stream.device(), layout.size(), "the weights"),
        rounded_(stream.device(), kRounds ? layout.size() : 0, "the weights in bf16") {
    if constexpr (kRounds)
      weights_ = weights_in<T>(layout, rounded_.data(), values_.data());
    else
      weights_ = weights_in<T>(layout, values_.data(), values_.data());
  }

  void set(std::span<const float> host) {
    upload(stream_, host, values());
    round();
  }
  std::vector<float> get() const {
    std::vector<float> host(static_cast<std::size_t>(layout_.size()));
    download(stream_, values(), host);
    return host;
  }

  Vector<float> values() const { return values_.view(); }
  // Empty for float32. Code that changes the values must update this copy, or call round().
  Vector<BFloat16> rounded() const { return rounded_.view(); }
  void round() {
    if constexpr (kRounds) launch(stream_, RoundWeights{.from = values(), .to = rounded()});
  }
  const Weights& weights() const { return weights_; }

 private:
  const ParameterLayout& layout_;
  Stream& stream_;
  Array<float> values_;
  Array<BFloat16> rounded_;
  Weights weights_;
};

}  // namespace essh
