#include "essh/chat/conversation.h"

#include <chrono>

#include "essh/base/clock.h"
#include "essh/text/stop_strings.h"

namespace essh::chat {
namespace {

using Clock = std::chrono::steady_clock;
// Prompt tokens between two checks for a stop.
constexpr std::size_t kPiece = 512;

}  // namespace

std::optional<serve::ChatTemplate> find_template(const std::string& name, const std::filesystem::path& folder,
                                                 const Tokenizer& tokenizer) {
  if (name == "none") return std::nullopt;
  const auto chat = serve::choose_chat_template(name, folder, tokenizer);
  // "auto" falls back on ChatML; a tokenizer without its markers was not trained on conversations.
  if (name == "auto" && !tokenizer.token_id(serve::end_of_turn(chat))) return std::nullopt;
  return chat;
}

Conversation::Conversation(Engine& engine, const Tokenizer& tokenizer, std::optional<serve::ChatTemplate> chat,
                           Tier tier, ConversationOptions options)
    : engine_(engine),
      tokenizer_(tokenizer),
      chat_(chat),
      tier_(std::move(tier)),
      options_(options),
      sampler_(options.sampling) {}

void Conversation::set_tier(Tier tier) {
  if (!(tier.capacity == tier_.capacity)) drop_state();
  tier_ = std::move(tier);
}

void Conversation::set_system(std::string text) {
  system_ = std::move(text);
  reset();
}

void Conversation::reset() {
  messages_.clear();
  tokens_.clear();
  drop_state();
  open_answer_ = false;
}

std::vector<serve::ChatMessage> Conversation::messages() const {
  std::vector<serve::ChatMessage> all;
  if (!system_.empty()) all.push_back({"system", system_});
  all.insert(all.end(), messages_.begin(), messages_.end());
  return all;
}

void Conversation::append(const std::string& message) {
  const bool first = tokens_.empty();
  const auto before = tokens_.size();
  if (!chat_) {
    const auto text = first ? (system_.empty() ? message : system_ + "\n" + message) : "\n" + message;
    tokenizer_.encode(text, tokens_, {.add_special_tokens = first, .parse_special_tokens = false});
    if (tokens_.empty()) tokens_.push_back(static_cast<TokenId>(engine_.config().bos_token_id));
  } else {
    if (open_answer_) tokenizer_.encode(serve::end_of_turn(*chat_), tokens_, {.parse_special_tokens = true});
    if (!first && *chat_ == serve::ChatTemplate::ChatMl) tokenizer_.encode("\n", tokens_, {});
    std::vector<serve::ChatMessage> added;
    if (first && !system_.empty()) added.push_back({"system", system_});
    added.push_back({"user", message});
    auto ids = serve::encode_chat(*chat_, added, tokenizer_);
    if (!first && *chat_ == serve::ChatTemplate::Llama3 && ids.front() == tokenizer_.token_id("<|begin_of_text|>"))
      ids.erase(ids.begin());
    tokens_.insert(tokens_.end(), ids.begin(), ids.end());
    open_answer_ = true;
  }
  engine_.model().check_tokens(std::span(tokens_).subspan(before), "the message");
  for (auto i = before; i < tokens_.size(); ++i) sampler_.see(tokens_[i]);
  messages_.push_back({"user", message});
}

void Conversation::drop_state() {
  drafted_.reset();
  session_.reset();
}

Index Conversation::position() const {
  return drafted_ ? drafted_->position() : session_ ? session_->position() : 0;
}

bool Conversation::feed(const std::function<bool()>& stop) {
  if (!session_) {
    const bool drafts = options_.draft && options_.draft->capacity.channels <= tier_.capacity.channels;
    session_ = std::make_unique<Session>(engine_, tier_, SlotOptions{.rewind = drafts ? options_.draft_tokens : 0});
    if (drafts)
      drafted_ = std::make_unique<SpeculativeText>(*session_, *options_.draft,
                                                   SpeculationOptions{.most = options_.draft_tokens});
  }
  const auto all = std::span<const TokenId>(tokens_);
  for (auto at = static_cast<std::size_t>(position()); at < all.size();) {
    if (stop()) return false;
    const auto count = std::min(kPiece, all.size() - at);
    if (drafted_)
      drafted_->feed(all.subspan(at, count));
    else
      session_->feed(all.subspan(at, count));
    at += count;
  }
  return true;
}

Turn Conversation::say(const std::string& message, const std::function<void(const std::string&)>& show,
                       const std::function<bool()>& stop) {
  Turn turn;
  const auto begun = Clock::now();
  append(message);
  const auto fed = position();
  const bool ready = feed(stop);
  turn.read = position() - fed;
  if (!ready) {
    turn.ending = Ending::Stopped;
    return turn;
  }
  const auto end_token = chat_ ? tokenizer_.token_id(serve::end_of_turn(*chat_)) : std::nullopt;
  StreamDecoder decoder(tokenizer_);
  StopStrings stops(chat_ ? std::vector<std::string>{std::string(serve::end_of_turn(*chat_))}
                          : std::vector<std::string>{});
  const auto speak = [&](const std::string& piece) {
    turn.text += piece;
    if (!piece.empty()) show(piece);
  };
  auto first = begun;
  turn.ending = Ending::Length;
  bool ended = false;
  // False: the token is not part of the answer.
  const auto take = [&](TokenId token) {
    if (turn.drawn == 0) {
      turn.first_seconds = seconds_since(begun);
      first = Clock::now();
    }
    const bool marker = end_token && token == *end_token;
    if (marker || token == engine_.config().eos_token_id) {
      turn.ending = Ending::Finished;
      ended = true;
      if (marker) {
        tokens_.push_back(token);
        open_answer_ = false;
      }
      return false;
    }
    ++turn.drawn;
    tokens_.push_back(token);
    sampler_.see(token);
    // A padded vocabulary has ids that the tokenizer does not know.
    if (token < tokenizer_.vocab_size()) speak(stops.add(decoder.add(token)));
    if (stops.found()) {
      turn.ending = Ending::Finished;
      open_answer_ = false;
      ended = true;
    }
    return true;
  };
  while (turn.drawn < options_.max_tokens && !ended) {
    if (stop()) {
      turn.ending = Ending::Stopped;
      break;
    }
    if (drafted_) {
      const auto found = drafted_->next(sampler_, options_.max_tokens - turn.drawn);
      Index kept = 0;
      while (kept < std::ssize(found) && !ended && take(found[static_cast<std::size_t>(kept)])) ++kept;
      drafted_->keep(kept);
    } else {
      take(sampler_.draw(session_->logits()));
      if (turn.drawn < options_.max_tokens && !ended) feed([] { return false; });
    }
  }
  turn.seconds = seconds_since(first);
  speak(stops.add(decoder.flush()) + stops.flush());
  messages_.push_back({"assistant", turn.text});
  return turn;
}

}  // namespace essh::chat
