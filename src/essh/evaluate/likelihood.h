#pragma once
#include <span>
#include <string>
#include <vector>

#include "essh/decode/engine.h"
#include "essh/evaluate/task.h"
#include "essh/text/tokenizer.h"

namespace essh {

// A request as tokens: at least one of each.
struct EncodedRequest {
  std::vector<TokenId> context, continuation;

  std::size_t tokens() const { return context.size() + continuation.size() - 1; }
};

// As lm-evaluation-harness does: whitespace at the end of the context moves to the continuation; context and whole text
// are tokenised, and the continuation is what the whole has after as many tokens as the context. An empty context is
// `eos`. Of a sequence longer than `most_tokens` inputs the left end is cut off; 0: never.
EncodedRequest encode_request(const TaskRequest& request, const Tokenizer& tokenizer, TokenId eos,
                              std::size_t most_tokens, const std::string& place);

struct Likelihood {
  double log_likelihood = 0;  // of the continuation, in nats
  bool greedy = false;        // each of its tokens has the largest logit; only known where asked for
  bool first_greedy = false;  // the first one has
};

// The requests of one item.
using EncodedItem = std::vector<EncodedRequest>;

// Likelihoods of every request of some items, in one or two passes. A context that the requests of an item share is
// read once. With `greedy`, logits come to the host and are summed in double; otherwise the engine's own losses count.
// What an item gets does not depend on the others (on a GPU, with a deterministic engine).
std::vector<std::vector<Likelihood>> measure_likelihoods(Engine& engine, const Tier& tier,
                                                         std::span<const EncodedItem> items, bool greedy);

// Tokens that a pass over an item takes, shared contexts once.
std::size_t pass_tokens(const EncodedItem& item);

}  // namespace essh
