#pragma once
#include "essh/kernels/round_weights.h"
#include "essh/model/tensors.h"

namespace essh {

// The weights of a model on a device: float32, and for a model that computes in bf16 a rounded copy in the same layout
// beside them. `layout` outlives them.
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
  // Empty for float32. Whoever changes the values rounds them too, or calls round().
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
