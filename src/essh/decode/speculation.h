#pragma once
#include <optional>
#include <vector>

#include "essh/decode/session.h"

namespace essh {

// Speculative decoding with a family: a small tier drafts a few tokens one by one, the target tier computes all of them
// in one pass, and those that it would have drawn itself stay. What comes out has the target's distribution exactly;
// greedy text is the target's own. The draft has no state of its own over the text: each round begins with the leading
// channels of the target's state.

// A token drawn from `shares`, which have a sum above 0. Takes a random number if there is a choice.
std::int32_t draw_from(std::span<const TokenShare> shares, Rng& random);

// Makes of a token `drafted` from the distribution `draft` one of the distribution `target`: keeps it with probability
// min(1, target / draft), and draws from max(0, target - draft) otherwise, which is never the same token.
std::int32_t accept_or_draw(std::span<const TokenShare> target, std::span<const TokenShare> draft, std::int32_t drafted,
                            Rng& random);

// Most tokens of a draft: as many as a slot can take back.
inline constexpr Index kMostDrafted = 16;

struct SpeculationOptions {
  Index most = 4;   // tokens of a draft, 1 to kMostDrafted
  Index least = 1;  // between both the acceptance seen so far decides
};

// How many tokens to draft when each is accepted with probability `acceptance`, a token of the draft costs
// `draft_cost` passes of the target, and each further row of a pass `row_cost`: the most tokens for the time.
Index best_draft_length(double acceptance, double draft_cost, double row_cost, const SpeculationOptions& options);

struct SpeculationCounts {
  Index passes = 0;    // of the target
  Index drafted = 0;   // tokens
  Index checked = 0;   // of these, up to the first that was refused
  Index accepted = 0;  // of these

  double acceptance() const { return checked > 0 ? static_cast<double>(accepted) / static_cast<double>(checked) : 0; }
};

class SpeculativeText {
 public:
  // The session is the target's; it outlives this and was opened to rewind `most` tokens. The draft has no more
  // channels.
  SpeculativeText(Session& target, const Tier& draft, SpeculationOptions options);
  ~SpeculativeText();
  SpeculativeText(const SpeculativeText&) = delete;
  SpeculativeText& operator=(const SpeculativeText&) = delete;

  // Takes in text: a prompt, or what follows the tokens found so far. Without tokens, the target takes in the last
  // token found, and its session can then be saved.
  void feed(std::span<const std::int32_t> tokens);
  // The next tokens of the text, 1 to `limit`. The caller shows those it keeps to the sampler before the next call.
  std::span<const std::int32_t> next(Sampler& sampler, Index limit);
  // The text goes on after the first `count` tokens of the last next().
  void keep(Index count);

  // Tokens of the text so far, the last one found included.
  Index position() const { return target_.position() + (pending_ ? 1 : 0); }
  const SpeculationCounts& counts() const { return counts_; }
  std::size_t draft_state_bytes() const { return engine_.state_bytes(draft_); }

 private:
  void draft(Sampler& sampler, Index count);

  Session& target_;
  Engine& engine_;
  SpeculationOptions options_;
  Slot draft_;
  double draft_cost_, row_cost_;
  double acceptance_ = 0.7;              // running mean, with a first guess
  std::optional<std::int32_t> pending_;  // last token of the text, if the target has not taken it in
  // Of the last round: tokens drafted with what each was drawn from, and the tokens found.
  std::vector<std::int32_t> drafted_;
  std::vector<std::vector<TokenShare>> drafted_from_;
  std::vector<std::int32_t> found_;
  Outputs outputs_;
  SpeculationCounts counts_;
};

}  // namespace essh
