#pragma once
#include <span>
#include <utility>
#include <vector>

#include "essh/serve/http.h"
#include "essh/serve/state_store.h"
#include "essh/text/tokenizer.h"

namespace essh::serve {

// The log-probability of a token under the model alone, without temperature, penalties or bias, and of the most likely
// tokens, best first. Never below kLeastLogprob: JSON has no infinity.
struct Scored {
  TokenId token = -1;
  float logprob = 0;
  std::vector<std::pair<TokenId, float>> top = {};
};
enum class Finish { Stop, Length };

// Hears what becomes of a job, one call at a time and in their order. Text number p * n + c is choice c of prompt p.
class Listener {
 public:
  virtual ~Listener() = default;
  // The client has left: the job is dropped before the next step. May be asked by any thread.
  virtual bool gone() const = 0;
  // The first call, by the thread that submits.
  virtual void accepted() = 0;
  // Tokens of a prompt whose state was known.
  virtual void prompt_cached(std::size_t prompt, std::size_t tokens) = 0;
  // Tokens of a prompt that have been taken in, with more to come.
  virtual void prompt_progress(std::size_t prompt, std::size_t tokens) = 0;
  // Tokens of a prompt from its second on, piece by piece in their order.
  virtual void prompt_scored(std::size_t prompt, std::span<const Scored> scored) = 0;
  // A drawn token; `shown` is false for the end of text. Returns false when the text is complete.
  virtual bool token(std::size_t text, TokenId token, bool shown, const Scored* scored) = 0;
  // Before ended(), where the job keeps its state.
  virtual void kept(SavedState state) = 0;
  virtual void ended(std::size_t text, Finish finish) = 0;
  // The last call.
  virtual void failed(const HttpError& error) = 0;
};

}  // namespace essh::serve
