#pragma once
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "essh/decode/engine.h"

namespace essh {

// One sequence being decoded: a slot of an engine and the logits after its last token.
class Session {
 public:
  // The engine outlives it.
  Session(Engine& engine, const Tier& tier, SlotOptions options = {});
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Takes in more tokens. Any cut of a text gives the same state to rounding.
  void feed(std::span<const std::int32_t> tokens);
  // The same for a few tokens, with the logits after each of them, of which take_back() needs those before.
  void feed_each(std::span<const std::int32_t> tokens);
  std::span<const float> logits_after(Index token) const;
  // Takes back the last tokens of feed_each(), but not all. The session was opened to rewind that many.
  void take_back(Index tokens);
  // Logits for the token after the last one fed; there must have been one.
  std::span<const float> logits() const;
  // Tokens fed so far.
  Index position() const { return engine_.position(slot_); }
  const Tier& tier() const { return tier_; }
  Engine& engine() const { return engine_; }
  Slot slot() const { return slot_; }
  std::size_t state_bytes() const { return engine_.state_bytes(slot_); }
  StateSnapshot snapshot() const { return engine_.snapshot(slot_); }
  void reset();

  // The state with its model's hash, capacity, position and last logits, and the sampler that draws from it. A file of
  // another model or tier, or a damaged one, is refused.
  void save(const std::filesystem::path& path, const SamplerState& sampler = {}) const;
  SamplerState restore(const std::filesystem::path& path);

 private:
  Engine& engine_;
  Tier tier_;
  SlotOptions options_;
  Slot slot_;
  Outputs outputs_;
  Index rows_ = 0;               // of outputs_: logits after that many of the last tokens
  std::vector<float> restored_;  // logits of a restored state
};

// Logits of every position of a text from its beginning, piece by piece: calls take(first position, rows x vocabulary).
enum class LogitsPath { Parallel, Recurrent };
void all_logits(Engine& engine, const Tier& tier, std::span<const std::int32_t> tokens, LogitsPath path,
                const std::function<void(Index, Matrix<const float>)>& take);

}  // namespace essh
