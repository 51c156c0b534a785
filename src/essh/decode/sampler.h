#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "essh/config/field.h"
#include "essh/kernels/draw_token.h"

namespace essh {

// How the next token is drawn. Filters apply in the order: repetition penalty, temperature, top-k, top-p, min-p.
struct SamplingOptions {
  double temperature = 0;  // 0: the most likely token
  std::int64_t top_k = 0;  // 0: all
  double top_p = 1;
  double min_p = 0;
  double repetition_penalty = 1;
  std::int64_t repetition_window = 256;
  std::uint64_t seed = 0;
};

template <class Visitor>
void fields(Visitor& visit, SamplingOptions& o) {
  visit("temperature", o.temperature, Field{.help = "0 takes the most likely token", .min = 0, .max = 100});
  visit("top_k", o.top_k, Field{.help = "draw among the k most likely; 0 for all", .min = 0, .max = 1 << 24});
  visit("top_p", o.top_p, Field{.help = "draw among the most likely that together reach p", .min = 0, .max = 1});
  visit("min_p", o.min_p,
        Field{.help = "drop tokens less likely than this share of the most likely", .min = 0, .max = 1});
  visit("repetition_penalty", o.repetition_penalty,
        Field{.help = "divides the logits of recent tokens; 1 is off", .min = 0.01, .max = 100});
  visit("repetition_window", o.repetition_window,
        Field{.help = "how many recent tokens the penalty sees", .min = 0, .max = 1 << 24});
  visit("seed", o.seed, Field{.help = "same seed, same text"});
}

// What a sampler has drawn and seen, so that another one can go on.
struct SamplerState {
  std::uint64_t seed = 0;
  std::uint64_t position = 0;             // in the random numbers of this seed
  std::vector<std::int32_t> recent = {};  // the last tokens, oldest first
};

// A token that can be drawn, with its probability.
struct TokenShare {
  std::int32_t token;
  double share;
};

// Draws tokens; a pure function of options, logits and what was drawn and seen before. kernels/draw_token.h defines it.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options) : options_(options), rng_(options.seed, kDrawStream) {}

  // A token of the prompt or a drawn one, for the repetition penalty.
  void see(std::int32_t token);
  // Logits that are NaN are never drawn; when none is finite, that is an error. `changes` to logits, tokens rising,
  // come before the repetition penalty.
  std::int32_t draw(std::span<const float> logits, std::span<const LogitChange> changes = {});
  // What draw() draws from, after the filters: tokens in rising order, shares adding up to 1. The repetition penalty
  // sees `ahead` as the latest tokens.
  std::vector<TokenShare> distribution(std::span<const float> logits, std::span<const std::int32_t> ahead = {});
  // The random numbers that draw() takes.
  Rng& random() { return rng_; }

  // For a draw by DrawToken: its options, with the changes of the repetition penalty and those given appended to
  // `list`. Once the token is known, drew() goes on as draw() and see() do.
  DrawOptions plan(std::span<const LogitChange> changes, std::vector<LogitChange>& list) const;
  void drew(std::int32_t token);
  // Whether it always takes the most likely token.
  bool takes_likeliest() const { return options_.temperature == 0 && options_.repetition_penalty == 1; }

  SamplerState state() const { return {options_.seed, rng_.position(), {recent().begin(), recent().end()}}; }
  // Goes on after the tokens of `state`; with random numbers of another seed, from their beginning.
  void resume(const SamplerState& state);

 private:
  DrawOptions plan(std::span<const LogitChange> changes, std::span<const std::int32_t> seen,
                   std::vector<LogitChange>& list) const;
  // The tokens that the penalty sees, oldest first.
  std::span<const std::int32_t> recent() const;
  void advance() {
    if (options_.temperature != 0) rng_.next64();
  }

  SamplingOptions options_;
  Rng rng_;
  std::vector<std::int32_t> recent_;  // the last ones are recent()
  std::vector<LogitChange> changes_;
  std::vector<DrawCandidate> room_;
};

}  // namespace essh
