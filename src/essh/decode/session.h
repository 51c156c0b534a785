#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "essh/model/model.h"
#include "essh/store/model_folder.h"

namespace essh {

// A model in memory, ready to run at any of its capacities. Shared by sessions; never changes.
class Runner {
 public:
  Runner(LoadedModel model, std::string hash);
  // Reads the folder and takes its hash.
  static Runner open(const std::filesystem::path& folder, NonFinite policy = NonFinite::Refuse);

  const ModelConfig& config() const { return loaded_.config; }
  const Model<float>& model() const { return model_; }
  Weights<float> weights() const { return loaded_.parameters.weights(); }
  const Parameters<float>& parameters() const { return loaded_.parameters; }
  const std::string& hash() const { return hash_; }
  // Tokens from outside: an id outside the vocabulary is an error that names its place.
  void check_tokens(std::span<const std::int32_t> tokens, std::string_view place) const;

 private:
  LoadedModel loaded_;
  Model<float> model_;
  std::string hash_;
};

// One sequence being decoded: a recurrent state of fixed size and the logits after its last token.
class Session {
 public:
  Session(const Runner& runner, Tier tier, Stream& stream);

  // Takes in more tokens: one at a time by the recurrent step, several by the chunked scan in pieces of bounded size.
  // Any split of a text gives the same state to rounding.
  void feed(std::span<const std::int32_t> tokens);
  // Logits for the token after the last one fed; there must have been one.
  std::span<const float> logits() const;
  // Tokens fed so far.
  Index position() const { return position_; }
  const Tier& tier() const { return tier_; }
  std::size_t state_bytes() const { return state_.size() * sizeof(float); }
  std::span<const float> state() const { return state_; }
  void reset();

  // The state with its model's hash, capacity, position and last logits. A file of another model or tier, or a damaged
  // one, is refused.
  void save(const std::filesystem::path& path) const;
  void restore(const std::filesystem::path& path);

 private:
  void extend(std::span<const std::int32_t> tokens, bool last);

  const Runner& runner_;
  Tier tier_;
  Stream& stream_;
  Arena arena_;
  std::vector<float> state_;
  std::vector<float> logits_;
  Index position_ = 0;
};

// Logits of every position of a text from its beginning, piece by piece: calls take(first position, rows x vocabulary).
enum class LogitsPath { Parallel, Recurrent };
void all_logits(const Runner& runner, Capacity capacity, Stream& stream, std::span<const std::int32_t> tokens,
                LogitsPath path, const std::function<void(Index, Matrix<const float>)>& take);

}  // namespace essh
