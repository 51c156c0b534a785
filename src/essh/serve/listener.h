#pragma once
#include <span>
#include <utility>
#include <vector>

#include "essh/serve/http.h"
#include "essh/serve/state_store.h"
#include "essh/text/tokenizer.h"

namespace essh::serve {

// The log-probability of a token and of the most likely tokens, best first, under the model without temperature,
// penalties or bias. At least kLeastLogprob, because JSON has no infinity.
struct Scored {
  TokenId token = -1;
  float logprob = 0;
  std::vector<std::pair<TokenId, float>> top = {};
};
enum class Finish { Stop, Length };

// Receives the progress of a job, one call at a time and in order. Text p * n + c is choice c of prompt p.
class Listener {
 public:
  virtual ~Listener() = default;
  // True once the client has left; the job is then dropped before the next step. Callable from any thread.
  virtual bool gone() const = 0;
  // The first call, on the submitting thread.
  virtual void accepted() = 0;
  // Tokens of a prompt taken from the cache.
  virtual void prompt_cached(std::size_t prompt, std::size_t tokens) = 0;
  // Tokens of a prompt computed so far; more follow.
  virtual void prompt_progress(std::size_t prompt, std::size_t tokens) = 0;
  // Scores of the prompt's tokens from the second on, in order, piece by piece.
  virtual void prompt_scored(std::size_t prompt, std::span<const Scored> scored) = 0;
  // A drawn token; `shown` is false for the end of text. Returns false if the text is complete.
  virtual bool token(std::size_t text, TokenId token, bool shown, const Scored* scored) = 0;
  // Called before ended() if the job keeps its state.
  virtual void kept(SavedState state) = 0;
  virtual void ended(std::size_t text, Finish finish) = 0;
  // The last call.
  virtual void failed(const HttpError& error) = 0;
};

}  // namespace essh::serve
