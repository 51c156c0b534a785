#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "essh/base/json.h"
#include "essh/serve/scheduler.h"
#include "essh/serve/schema.h"
#include "essh/text/stop_strings.h"

namespace essh::serve {

// The name of a token in log-probabilities: its text, "bytes:\xE2" if its bytes are not UTF-8, "token_id:7" if it has
// no text or with `as_id`. Tokens with different bytes have different names.
std::string token_name(const Tokenizer& tokenizer, TokenId id, bool as_id = false);

// Members of every reply.
struct ReplyHead {
  std::string id = {}, model = {}, fingerprint = {};
  std::int64_t created = 0;
  std::string asked_tier = {}, reason = {};  // reason: why a smaller tier replies than was asked for
};

// A prompt as tokens, and as text for `echo`.
struct EncodedPrompt {
  std::vector<TokenId> tokens = {};
  std::string text = {};
  bool from_text = false;
};

// Turns the tokens of a job into one JSON reply or a stream of chunks.
class Completion : public Listener, public std::enable_shared_from_this<Completion> {
 public:
  // The tokenizer outlives the Completion. `answered` is called with the status at the end.
  Completion(GenerationRequest request, std::vector<EncodedPrompt> prompts, ReplyHead head, const Tokenizer& tokenizer,
             std::shared_ptr<Exchange> exchange, std::function<void(int)> answered);

  // Where states are saved, and for which owner. The store outlives the Completion.
  void keep_in(StateStore& store, std::string owner) {
    store_ = &store;
    owner_ = std::move(owner);
  }
  // The job whose listener is `self`, a pointer to this object.
  Job job(Tier tier, std::shared_ptr<Listener> self) const;

  bool gone() const override { return exchange_->gone(); }
  void accepted() override;
  void prompt_cached(std::size_t prompt, std::size_t tokens) override;
  void prompt_progress(std::size_t prompt, std::size_t tokens) override;
  void prompt_scored(std::size_t prompt, std::span<const Scored> scored) override;
  bool token(std::size_t text, TokenId token, bool shown, const Scored* scored) override;
  void kept(SavedState state) override { kept_ = std::move(state); }
  void ended(std::size_t text, Finish finish) override;
  void failed(const HttpError& error) override;

 private:
  struct Logs {
    std::vector<Scored> scored = {};
    std::vector<std::size_t> offsets = {};  // in characters of the text
    bool from_start = false;                // the first token has no log-probability
  };
  struct Choice {
    StreamDecoder decoder;
    StopStrings stops;
    std::string text = {};  // not sent
    Logs logs = {};         // not sent
    std::size_t characters = 0;
    std::int64_t made = 0;
    bool begun = false;
    const char* finish = nullptr;
  };

  void start(std::size_t text);
  void send_chunk(std::size_t text);
  void finish();
  void finish_reply();
  Json logprobs(const Logs& logs) const;
  Json usage() const;
  Json reply_head(const char* object) const;
  std::string chunk(const std::string& choices, const Json& usage) const;

  GenerationRequest request_;
  std::vector<EncodedPrompt> prompts_;
  ReplyHead head_;
  const Tokenizer& tokenizer_;
  std::shared_ptr<Exchange> exchange_;
  std::function<void(int)> answered_;
  std::vector<Logs> prompt_logs_;
  std::vector<Choice> choices_;
  std::string chunk_head_;
  std::size_t open_;
  std::size_t cached_ = 0;  // prompt tokens from the cache
  StateStore* store_ = nullptr;
  std::string owner_;
  std::optional<SavedState> kept_;
  Json saved_;  // the "state" member of the reply
};

}  // namespace essh::serve
