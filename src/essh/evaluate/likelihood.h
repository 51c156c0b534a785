#pragma once
#include <span>
#include <string>
#include <vector>

#include "essh/decode/engine.h"
#include "essh/evaluate/task.h"
#include "essh/text/tokenizer.h"

namespace essh {

// A request as tokens. Neither part is empty; of generation, `continuation` is.
struct EncodedRequest {
  std::vector<TokenId> context, continuation;

  std::size_t tokens() const { return context.size() + continuation.size() - 1; }
};

// Encodes as lm-evaluation-harness: whitespace at the end of the context moves to the continuation; context and whole
// text are tokenised; the continuation is the whole without as many tokens as the context has. An empty context becomes
// `eos`. More than `most_tokens` inputs are cut at the left; 0: no limit.
EncodedRequest encode_request(const TaskRequest& request, const Tokenizer& tokenizer, TokenId eos,
                              std::size_t most_tokens, const std::string& place);

struct Likelihood {
  double log_likelihood = 0;  // of the continuation, in nats
  bool greedy = false;        // each of its tokens has the largest logit; set only on request
  bool first_greedy = false;  // its first token has
};

// The requests of one item.
using EncodedItem = std::vector<EncodedRequest>;

// Likelihoods of every request of some items, in one or two passes. A context shared by the requests of an item is read
// once. With `greedy`, logits are copied to the host and summed in double; otherwise the engine's losses are used. The
// result of an item does not depend on the other items (on a GPU: with a deterministic engine).
std::vector<std::vector<Likelihood>> measure_likelihoods(Engine& engine, const Tier& tier,
                                                         std::span<const EncodedItem> items, bool greedy);

// Input tokens of an item in a pass; a shared context counts once.
std::size_t pass_tokens(const EncodedItem& item);

}  // namespace essh
