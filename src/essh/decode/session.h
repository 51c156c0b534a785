#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "essh/decode/runner.h"

namespace essh {

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
  std::size_t state_bytes() const { return state_.bytes(); }
  // A copy on the host.
  std::vector<float> state() const;
  void reset();

  // The state with its model's hash, capacity, position and last logits. A file of another model or tier, or a damaged
  // one, is refused.
  void save(const std::filesystem::path& path) const;
  void restore(const std::filesystem::path& path);

 private:
  void extend(std::span<const std::int32_t> tokens, bool last);
  void step(std::int32_t token);
  void fetch_logits();

  const Runner& runner_;
  Tier tier_;
  Stream& stream_;
  Arena arena_;
  Array<float> state_;
  // Operands of a step, always in the same place.
  Array<std::int32_t> token_;
  Array<Index> device_position_;
  Array<float> device_logits_;
  Recording step_;
  std::vector<float> logits_;
  Index position_ = 0;
};

// Logits of every position of a text from its beginning, piece by piece: calls take(first position, rows x vocabulary).
enum class LogitsPath { Parallel, Recurrent };
void all_logits(const Runner& runner, Capacity capacity, Stream& stream, std::span<const std::int32_t> tokens,
                LogitsPath path, const std::function<void(Index, Matrix<const float>)>& take);

}  // namespace essh
