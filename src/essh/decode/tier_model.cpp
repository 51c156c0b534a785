#include "essh/decode/tier_model.h"

#include <algorithm>
#include <cstring>

namespace essh {
namespace {

// Elements converted at once on their way to a GPU.
constexpr Index kPiece = Index{1} << 24;
constexpr Index kAlignment = 256;
// Steps of a tier that are kept recorded.
constexpr std::size_t kMostSteps = 64;

// A weight of the host to dense memory of V on the device, a few rows at a time.
template <class V>
void upload_weight(Stream& stream, const Weight& from, V* to) {
  const Index step = std::max<Index>(1, kPiece / from.cols);
  std::vector<V> piece;
  for (Index row = 0; row < from.rows; row += step) {
    auto part = from;
    part.data = from.row(row);
    part.rows = std::min(step, from.rows - row);
    piece.resize(static_cast<std::size_t>(part.rows * part.cols));
    read_weight<V>(part, piece);
    stream.copy(to + row * from.cols, piece.data(), piece.size() * sizeof(V));
  }
}

}  // namespace

template <class T>
TierModel<T>::TierModel(const StoredModel& stored, Capacity capacity, Stream& stream, const StateFormats& formats)
    : capacity_(capacity), model_(slice(stored.config(), capacity)), coded_(stored.coded(capacity)) {
  const auto& layout = model_.layout();
  const auto sliced = slice(stored.config(), stored.weights(), capacity);
  if (stream.device() == Device::Cpu) {
    weights_ = sliced;
  } else {
    // Matrices follow the tables in the layout, and only theirs are kept in T.
    const Index first = layout.tables() / 64 * 64;
    matrices_ = Array<T>(stream.device(), layout.size() - first, "weights");
    tables_ = Array<float>(stream.device(), layout.tables(), "small weights");
    for (std::size_t i = 0; i < layout.tensors().size(); ++i) {
      if (layout.tensors()[i].is_matrix())
        upload_weight<T>(stream, sliced[i], matrices_.data() + layout.offset(i) - first);
      else
        upload_weight<float>(stream, sliced[i], tables_.data() + layout.offset(i));
    }
    weights_ = weights_in<T>(layout, matrices_.data() - first, tables_.data());
  }
  parts_ = model_state(model_.config(), formats);
  for (const auto& part : parts_) {
    offsets_.push_back(fixed_bytes_);
    if (part.kind == StatePart::Kind::Fixed)
      fixed_bytes_ += (stored_bytes(part.format, part.columns) + kAlignment - 1) / kAlignment * kAlignment;
  }
}

template <class T>
std::size_t TierModel<T>::weight_bytes() const {
  Index sum = 0;
  for (const auto& weight : weights_.tensors) sum += weight.bytes();
  return static_cast<std::size_t>(sum);
}

template <class T>
std::size_t TierModel<T>::step_bytes(bool codes) const {
  if (!codes) return weight_bytes();
  Index sum = 0;
  for (std::size_t i = 0; i < coded_.size(); ++i)
    sum += coded_[i].codes ? coded_[i].bytes() : weights_.tensors[i].bytes();
  return static_cast<std::size_t>(sum);
}

template <class T>
StreamedModel<T>* TierModel<T>::streamed(Stream& stream, std::size_t codes_from) {
  if (!asked_for_streamed_) {
    const auto codes =
        weight_bytes() >= codes_from ? std::span<const CodedWeight>(coded_) : std::span<const CodedWeight>();
    streamed_ = StreamedModel<T>::make(model_, weights_, codes, parts_, offsets_, stream);
  }
  asked_for_streamed_ = true;
  return streamed_.get();
}

template <class T>
typename TierModel<T>::Step& TierModel<T>::step(const StepKey& key, Stream& stream) {
  const auto found = steps_.find(key);
  if (found != steps_.end()) return found->second;
  if (steps_.size() >= kMostSteps) {
    stream.wait();
    steps_.clear();
  }
  return steps_[key];
}

template <class T>
const std::byte* TierModel<T>::Step::upload(const PassInputs& given, Stream& stream) {
  if (inputs.size() == 0) inputs = Array<std::byte>(stream.device(), std::ssize(given.bytes), "tokens and positions");
  const bool same =
      pointers == given.pointers ||
      (uploaded.size() == given.bytes.size() && std::memcmp(uploaded.data(), given.bytes.data(), given.positions) == 0);
  pointers = given.pointers;
  const std::size_t begin = same ? given.positions : 0;
  stream.copy(inputs.data() + begin, given.bytes.data() + begin, given.bytes.size() - begin);
  if (!same) uploaded = given.bytes;
  return inputs.data();
}

template class TierModel<float>;
template class TierModel<BFloat16>;

}  // namespace essh
