#pragma once
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "essh/model/device_weights.h"
#include "essh/model/model.h"
#include "essh/model/precision.h"
#include "essh/store/model_folder.h"

namespace essh {

// A model in memory, ready to run at any of its capacities. Shared by sessions; never changes.
class Runner {
 public:
  Runner(LoadedModel model, std::string hash, Precision precision = Precision::Auto);
  // Reads the folder and takes its hash.
  static Runner open(const std::filesystem::path& folder, Precision precision = Precision::Auto,
                     NonFinite policy = NonFinite::Refuse);
  // One capacity alone, as its export holds it; the same hash.
  Runner at(Capacity capacity) const;

  const ModelConfig& config() const { return loaded_->config; }
  const Parameters<float>& parameters() const { return loaded_->parameters; }
  const std::string& hash() const { return hash_; }
  Precision precision() const { return precision_; }
  // Tokens from outside: an id outside the vocabulary is an error that names its place.
  void check_tokens(std::span<const std::int32_t> tokens, std::string_view place) const;

  // Calls body(const Model<T>&, const Weights<T>&) with the type that this model computes in on a stream. The first
  // call for a GPU brings the weights there.
  template <class Body>
  decltype(auto) with(Stream& stream, const Body& body) const {
    if (computes_in(stream) == Precision::BFloat16) {
      const auto& placed = place<BFloat16>(stream);
      return body(placed.model, placed.weights.weights());
    }
    const auto& placed = place<float>(stream);
    return body(placed.model, placed.weights.weights());
  }
  // Elements of recurrent state on a stream.
  Index state_size(Stream& stream, Capacity capacity) const {
    return with(stream, [&](const auto& model, const auto&) { return model.state_size(capacity); });
  }
  // Bytes of the weights where a stream computes.
  std::size_t weight_bytes(Stream& stream) const;

 private:
  template <class T>
  struct Placed {
    Model<T> model;
    DeviceWeights<T> weights;
  };
  // Weights lie on one device at a time: the one asked for last.
  struct Place {
    std::mutex mutex;
    Stream* stream = nullptr;
    std::unique_ptr<Placed<float>> single;
    std::unique_ptr<Placed<BFloat16>> half;
  };
  Precision computes_in(Stream& stream) const;
  template <class T>
  const Placed<T>& place(Stream& stream) const;

  std::unique_ptr<LoadedModel> loaded_;
  std::string hash_;
  Precision precision_;
  std::unique_ptr<Place> place_ = std::make_unique<Place>();
};

}  // namespace essh
