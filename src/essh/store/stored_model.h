#pragma once
#include <memory>
#include <string>

#include "essh/store/model_folder.h"

namespace essh {

// A model with weights in their stored format, ready to be sliced and packed for a device: a folder mapped into memory,
// or parameters held in float32. Immutable; copies share the weights.
class StoredModel {
 public:
  // Maps the folder. Tensors that cannot be used in place are converted to float32: quantised matrices, tables that are
  // not float32, float64, misaligned tensors. Non-finite values are an error unless accepted.
  static StoredModel open(const std::filesystem::path& folder, NonFinite policy = NonFinite::Refuse);
  explicit StoredModel(LoadedModel model, std::string hash = "");

  // A copy of one capacity in its stored format, equal to its export; the same hash.
  StoredModel cut(Capacity capacity) const;
  // A copy whose matrices are stored as an export of this format stores them, bf16 or quantised; the same hash.
  StoredModel stored_as(const MatrixFormat& format) const;

  const ModelConfig& config() const;
  // In host memory.
  const Weights& weights() const;
  // The codes and scales of weights() at a capacity, in host memory, one entry per tensor. Entries are empty for
  // tensors that are not quantised or have codes that quantise_row() never writes.
  std::vector<CodedWeight> coded(Capacity capacity) const;
  // model_hash of the folder, computed on first use.
  const std::string& hash() const;
  // Checks untrusted tokens: an id outside the vocabulary is an error that names its position.
  void check_tokens(std::span<const std::int32_t> tokens, std::string_view place) const;

 private:
  struct Content;
  explicit StoredModel(std::shared_ptr<Content> content) : content_(std::move(content)) {}

  std::shared_ptr<Content> content_;
};

// values = the elements of a weight in host memory, row after row.
template <class T>
void read_weight(const Weight& weight, std::span<T> values);

}  // namespace essh
