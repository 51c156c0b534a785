#pragma once
#include <optional>

#include "essh/device/stream.h"
#include "essh/model/tensors.h"

namespace essh {

// The weights of a model where a stream computes, matrices in T. In float32 on the CPU they are the given parameters
// themselves, which must outlive this; otherwise a copy.
template <class T>
class DeviceWeights {
 public:
  DeviceWeights(const Parameters<float>& parameters, Stream& stream);

  Weights<T> weights() const { return weights_; }

 private:
  Array<T> matrices_;
  Array<Wide<T>> tables_;
  Weights<T> weights_;
};

}  // namespace essh
