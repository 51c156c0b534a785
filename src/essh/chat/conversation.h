#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "essh/decode/sampler.h"
#include "essh/decode/session.h"
#include "essh/decode/speculation.h"
#include "essh/serve/chat_template.h"
#include "essh/text/tokenizer.h"

namespace essh::chat {

struct ConversationOptions {
  SamplingOptions sampling = {};
  std::int64_t max_tokens = 256;   // per answer
  std::optional<Tier> draft = {};  // drafts for tiers with as many channels or more
  Index draft_tokens = 4;          // most of a draft
};

enum class Ending { Finished, Length, Stopped };

// Result of one message.
struct Turn {
  std::string text = {};                  // the answer
  std::int64_t read = 0;                  // tokens processed before the first one was drawn
  std::int64_t drawn = 0;                 // tokens of the answer
  double first_seconds = 0, seconds = 0;  // until the first token; from the first to the last
  Ending ending = Ending::Finished;
};

// A conversation with one model, at one tier at a time. The state persists between turns, so that each turn processes
// new tokens only; after a change of the tier the next turn processes all tokens.
class Conversation {
 public:
  // `engine` and `tokenizer` must outlive the conversation. Without a template, messages are pieces of one text that
  // the model continues.
  Conversation(Engine& engine, const Tokenizer& tokenizer, std::optional<serve::ChatTemplate> chat, Tier tier,
               ConversationOptions options);

  const Tier& tier() const { return tier_; }
  void set_tier(Tier tier);
  // Restarts with another system message.
  void set_system(std::string text);
  // Restarts.
  void reset();

  // Passes the answer to `show` piece by piece, in whole characters. Polls `stop` between tokens and between pieces of
  // the prompt; a stopped answer stays in the conversation.
  Turn say(const std::string& message, const std::function<void(const std::string&)>& show,
           const std::function<bool()>& stop);

  // All messages, the system message first.
  std::vector<serve::ChatMessage> messages() const;

 private:
  void append(const std::string& message);
  void drop_state();
  // Tokens that are part of the state.
  Index position() const;
  // Processes the tokens that are not in the state yet. False if stopped.
  bool feed(const std::function<bool()>& stop);

  Engine& engine_;
  const Tokenizer& tokenizer_;
  std::optional<serve::ChatTemplate> chat_;
  Tier tier_;
  ConversationOptions options_;
  Sampler sampler_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<SpeculativeText> drafted_;  // of the session, if there is a draft
  std::string system_;
  std::vector<serve::ChatMessage> messages_;
  std::vector<TokenId> tokens_;  // the whole conversation
  bool open_answer_ = false;     // the last answer has no end-of-turn marker yet
};

// The template of the folder, or the one whose markers the tokenizer has; none if the model was not trained on
// conversations. `name` is auto, chatml, llama3 or none.
std::optional<serve::ChatTemplate> find_template(const std::string& name, const std::filesystem::path& folder,
                                                 const Tokenizer& tokenizer);

}  // namespace essh::chat
