#include "essh/model/device_weights.h"

#include <algorithm>

namespace essh {

template <class T>
DeviceWeights<T>::DeviceWeights(const Parameters<float>& parameters, Stream& stream) {
  const auto& layout = parameters.layout();
  if constexpr (std::is_same_v<T, float>) {
    if (stream.device() == Device::Cpu) {
      weights_ = parameters.weights();
      return;
    }
  }
  // Matrices follow the tables in the layout, and only theirs are kept in T.
  const Index first = layout.tables() / 64 * 64, count = layout.size() - first;
  matrices_ = Array<T>(stream.device(), count, "weights");
  tables_ = Array<float>(stream.device(), layout.tables(), "small weights");
  stream.copy(tables_.data(), parameters.data(), static_cast<std::size_t>(layout.tables()) * sizeof(float));
  if constexpr (std::is_same_v<T, float>) {
    stream.copy(matrices_.data(), parameters.data() + first, static_cast<std::size_t>(count) * sizeof(float));
  } else {
    constexpr Index kPiece = Index{1} << 24;
    std::vector<T> piece;
    for (Index begin = 0; begin < count; begin += kPiece) {
      const Index size = std::min(kPiece, count - begin);
      piece.resize(static_cast<std::size_t>(size));
      std::transform(parameters.data() + first + begin, parameters.data() + first + begin + size, piece.begin(),
                     [](float x) { return T(x); });
      stream.copy(matrices_.data() + begin, piece.data(), piece.size() * sizeof(T));
    }
  }
  weights_ = {&layout, matrices_.data() - first, tables_.data()};
}

template class DeviceWeights<float>;
template class DeviceWeights<BFloat16>;

}  // namespace essh
