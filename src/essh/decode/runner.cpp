#include "essh/decode/runner.h"

namespace essh {
namespace fs = std::filesystem;

Runner::Runner(LoadedModel model, std::string hash, Precision precision)
    : loaded_(std::make_unique<LoadedModel>(std::move(model))), hash_(std::move(hash)), precision_(precision) {}

Runner Runner::open(const fs::path& folder, Precision precision, NonFinite policy) {
  return Runner(load_model(folder, policy), model_hash(folder), precision);
}

Runner Runner::at(Capacity capacity) const {
  return Runner(model_at(config(), parameters(), capacity), hash_, precision_);
}

void Runner::check_tokens(std::span<const std::int32_t> tokens, std::string_view place) const {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= config().vocab_size) {
      fail(ErrorKind::Usage, "{}: token {} is {}, this model's vocabulary has ids 0 to {}", place, i, tokens[i],
           config().vocab_size - 1);
    }
  }
}

Precision Runner::computes_in(Stream& stream) const {
  return precision_on(stream.device(), precision_);
}

template <class T>
const Runner::Placed<T>& Runner::place(Stream& stream) const {
  const std::scoped_lock lock(place_->mutex);
  if (place_->stream != &stream) {
    place_->single.reset();
    place_->half.reset();
    place_->stream = &stream;
  }
  auto& placed = [&]() -> std::unique_ptr<Placed<T>>& {
    if constexpr (std::is_same_v<T, float>)
      return place_->single;
    else
      return place_->half;
  }();
  if (!placed) placed.reset(new Placed<T>{Model<T>(config()), DeviceWeights<T>(parameters(), stream)});
  return *placed;
}

template const Runner::Placed<float>& Runner::place<float>(Stream&) const;
template const Runner::Placed<BFloat16>& Runner::place<BFloat16>(Stream&) const;

std::size_t Runner::weight_bytes(Stream& stream) const {
  const auto elements = static_cast<std::size_t>(parameters().layout().size());
  return elements * (computes_in(stream) == Precision::BFloat16 ? sizeof(BFloat16) : sizeof(float));
}

}  // namespace essh
