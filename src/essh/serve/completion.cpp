#include "essh/serve/completion.h"

#include <algorithm>
#include <cstdlib>

#include "essh/base/json.h"
#include "essh/base/utf8.h"

namespace essh::serve {
namespace {

std::size_t count_characters(std::string_view text) {
  std::size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

// The shortest decimal that reads back as this float.
Json number(float value) {
  return std::strtod(fmt::format("{}", value).c_str(), nullptr);
}

// Appends a string as JSON; most pieces need no escapes.
void append_json(std::string& to, const std::string& text) {
  const auto plain = [](char c) { return c >= ' ' && c < 0x7f && c != '"' && c != '\\'; };
  if (!std::ranges::all_of(text, plain)) {
    to += to_text(Json(text));
    return;
  }
  to += '"';
  to += text;
  to += '"';
}

std::string_view bytes_of(const Tokenizer& tokenizer, TokenId id) {
  return id < tokenizer.vocab_size() ? tokenizer.token_bytes(id) : std::string_view();
}

// Where each token begins in the echoed text.
std::vector<std::size_t> offsets_of(const EncodedPrompt& prompt, const Tokenizer& tokenizer) {
  std::vector<std::size_t> offsets;
  if (!prompt.from_text) {
    StreamDecoder decoder(tokenizer);
    std::size_t characters = 0;
    for (const auto token : prompt.tokens) {
      offsets.push_back(characters);
      if (token < tokenizer.vocab_size()) characters += count_characters(decoder.add(token));
    }
    return offsets;
  }
  // Special tokens around the text are not part of it.
  std::size_t place = 0, characters = 0;
  for (const auto token : prompt.tokens) {
    offsets.push_back(characters);
    const auto bytes = bytes_of(tokenizer, token);
    if (!std::string_view(prompt.text).substr(place).starts_with(bytes)) continue;
    place += bytes.size();
    characters += count_characters(bytes);
  }
  return offsets;
}

}  // namespace

std::string token_name(const Tokenizer& tokenizer, TokenId id, bool as_id) {
  const auto bytes = bytes_of(tokenizer, id);
  if (as_id || bytes.empty()) return fmt::format("token_id:{}", id);
  if (!first_invalid_utf8(bytes)) return std::string(bytes);
  std::string name = "bytes:";
  for (const char byte : bytes) name += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  return name;
}

Completion::Completion(GenerationRequest request, std::vector<EncodedPrompt> prompts, ReplyHead head,
                       const Tokenizer& tokenizer, std::shared_ptr<Exchange> exchange,
                       std::function<void(int)> answered)
    : request_(std::move(request)),
      prompts_(std::move(prompts)),
      head_(std::move(head)),
      tokenizer_(tokenizer),
      exchange_(std::move(exchange)),
      answered_(std::move(answered)),
      prompt_logs_(prompts_.size()),
      open_(prompts_.size() * static_cast<std::size_t>(request_.n)) {
  for (std::size_t i = 0; i < open_; ++i) {
    choices_.push_back({.decoder = StreamDecoder(tokenizer), .stops = StopStrings(request_.stops)});
  }
  chunk_head_ = to_text(reply_head(request_.chat ? "chat.completion.chunk" : "text_completion"));
  chunk_head_.pop_back();
}

Json Completion::reply_head(const char* object) const {
  Json head = {{"id", head_.id},
               {"object", object},
               {"created", head_.created},
               {"model", head_.model},
               {"system_fingerprint", head_.fingerprint}};
  if (!head_.reason.empty()) head["essh"] = {{"asked_tier", head_.asked_tier}, {"reason", head_.reason}};
  if (!saved_.is_null()) head["essh"]["state"] = saved_;
  return head;
}

Job Completion::job(Tier tier, std::shared_ptr<Listener> self) const {
  Job job{.tier = std::move(tier),
          .n = request_.n,
          .max_tokens = request_.max_tokens,
          .sampling = request_.sampling,
          .presence_penalty = request_.presence_penalty,
          .frequency_penalty = request_.frequency_penalty,
          .logit_bias = request_.logit_bias,
          .logprobs = request_.logprobs,
          .score_prompt = request_.echo && request_.logprobs >= 0,
          .ignore_eos = request_.ignore_eos,
          .salt = request_.cache_salt,
          .resume_sampler = !request_.seeded,
          .keep_state = request_.save_state,
          .may_stop = !request_.stops.empty(),
          .listener = std::move(self)};
  for (const auto& prompt : prompts_) job.prompts.push_back(prompt.tokens);
  return job;
}

void Completion::accepted() {
  if (!request_.stream) return;
  exchange_->start_events();
  if (!request_.chat) return;
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    const Json choice = {{"index", i},
                         {"delta", {{"role", "assistant"}, {"content", ""}}},
                         {"logprobs", nullptr},
                         {"finish_reason", nullptr}};
    exchange_->event(chunk(to_text(choice), nullptr));
  }
}

std::string Completion::chunk(const std::string& choices, const Json& usage) const {
  std::string text;
  text.reserve(chunk_head_.size() + choices.size() + 48);
  text.append(chunk_head_).append(",\"choices\":[").append(choices).append("]");
  if (request_.include_usage) text.append(",\"usage\":").append(usage.is_null() ? "null" : to_text(usage));
  return text.append("}");
}

void Completion::prompt_cached(std::size_t, std::size_t tokens) {
  cached_ += tokens;
}

void Completion::prompt_progress(std::size_t prompt, std::size_t tokens) {
  if (request_.stream) exchange_->comment(fmt::format("prompt {}/{}", tokens, prompts_[prompt].tokens.size()));
}

void Completion::prompt_scored(std::size_t prompt, std::span<const Scored> scored) {
  auto& logs = prompt_logs_[prompt].scored;
  logs.insert(logs.end(), scored.begin(), scored.end());
}

// Starts a choice with the echoed prompt.
void Completion::start(std::size_t text) {
  auto& choice = choices_[text];
  if (std::exchange(choice.begun, true) || !request_.echo) return;
  const auto number_of_prompt = text / static_cast<std::size_t>(request_.n);
  const auto& prompt = prompts_[number_of_prompt];
  choice.text = prompt.text;
  choice.characters = count_characters(prompt.text);
  if (request_.logprobs < 0) return;
  choice.logs.from_start = true;
  choice.logs.scored.push_back({.token = prompt.tokens.front()});
  const auto& scored = prompt_logs_[number_of_prompt].scored;
  choice.logs.scored.insert(choice.logs.scored.end(), scored.begin(), scored.end());
  choice.logs.offsets = offsets_of(prompt, tokenizer_);
}

bool Completion::token(std::size_t text, TokenId token, bool shown, const Scored* scored) {
  start(text);
  auto& choice = choices_[text];
  ++choice.made;
  if (scored) {
    choice.logs.scored.push_back(*scored);
    choice.logs.offsets.push_back(choice.characters);
  }
  // A padded vocabulary has ids without a token.
  if (shown && token < tokenizer_.vocab_size()) {
    const auto piece = choice.decoder.add(token);
    choice.characters += count_characters(piece);
    choice.text += choice.stops.add(piece);
  }
  const bool more = !choice.stops.found();
  // The last piece is sent together with the finish reason.
  if (request_.stream && more && shown && choice.made < request_.max_tokens) send_chunk(text);
  return more;
}

void Completion::send_chunk(std::size_t text) {
  auto& choice = choices_[text];
  if (choice.text.empty() && choice.logs.scored.empty() && !choice.finish) return;
  auto content = fmt::format("{{\"index\":{},{}", text, request_.chat ? "\"delta\":{\"content\":" : "\"text\":");
  append_json(content, choice.text);
  choice.text.clear();
  if (request_.chat) content += '}';
  content += ",\"logprobs\":";
  content += request_.logprobs >= 0 ? to_text(logprobs(std::exchange(choice.logs, {}))) : "null";
  content += ",\"finish_reason\":";
  content += choice.finish ? fmt::format("\"{}\"}}", choice.finish) : "null}";
  exchange_->event(chunk(content, nullptr));
}

void Completion::ended(std::size_t text, Finish finish_reason) {
  start(text);
  auto& choice = choices_[text];
  choice.text += choice.stops.add(choice.decoder.flush()) + choice.stops.flush();
  choice.finish = finish_reason == Finish::Stop || choice.stops.found() ? "stop" : "length";
  if (request_.stream) send_chunk(text);
  if (--open_ == 0) finish();
}

void Completion::finish() {
  if (!kept_ || !store_) return finish_reply();
  const auto tokens = kept_->state.position + std::ssize(kept_->pending);
  store_->save(std::move(*kept_), owner_, [self = shared_from_this(), tokens](const StateStore::Receipt& receipt) {
    self->saved_ = receipt.error.empty() ? Json{{"id", receipt.id}, {"tokens", tokens}, {"bytes", receipt.bytes}}
                                         : Json{{"id", nullptr}, {"error", receipt.error}};
    self->finish_reply();
  });
}

void Completion::finish_reply() {
  answered_(200);
  if (request_.stream) {
    if (!saved_.is_null()) {
      auto last = reply_head(request_.chat ? "chat.completion.chunk" : "text_completion");
      last["choices"] = Json::array();
      if (request_.include_usage) last["usage"] = nullptr;
      exchange_->event(to_text(last));
    }
    if (request_.include_usage) exchange_->event(chunk("", usage()));
    exchange_->event("[DONE]");
    exchange_->end_events();
    return;
  }
  Json choices = Json::array();
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    const auto& choice = choices_[i];
    Json entry = {{"index", i}};
    if (request_.chat) {
      entry["message"] = {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
    } else {
      entry["text"] = choice.text;
    }
    entry["logprobs"] = request_.logprobs >= 0 ? logprobs(choice.logs) : Json(nullptr);
    entry["finish_reason"] = choice.finish;
    choices.push_back(std::move(entry));
  }
  auto body = reply_head(request_.chat ? "chat.completion" : "text_completion");
  body["choices"] = std::move(choices);
  body["usage"] = usage();
  exchange_->send({.body = to_text(body)});
}

void Completion::failed(const HttpError& error) {
  answered_(error.status());
  if (!request_.stream) return exchange_->send(error.reply());
  exchange_->event(error.body());
  exchange_->end_events();
}

Json Completion::usage() const {
  std::int64_t prompt = 0, made = 0;
  for (const auto& one : prompts_) prompt += std::ssize(one.tokens);
  for (const auto& choice : choices_) made += choice.made;
  return {{"prompt_tokens", prompt},
          {"completion_tokens", made},
          {"total_tokens", prompt + made},
          {"prompt_tokens_details", {{"cached_tokens", cached_}}}};
}

Json Completion::logprobs(const Logs& logs) const {
  const auto name = [&](TokenId id) { return token_name(tokenizer_, id, request_.token_ids); };
  if (request_.chat) {
    const auto entry = [&](TokenId id, float logprob) {
      Json bytes = Json::array();
      for (const char byte : bytes_of(tokenizer_, id)) bytes.push_back(static_cast<unsigned char>(byte));
      return Json{{"token", name(id)}, {"logprob", number(logprob)}, {"bytes", std::move(bytes)}};
    };
    Json content = Json::array();
    for (const auto& scored : logs.scored) {
      auto one = entry(scored.token, scored.logprob);
      one["top_logprobs"] = Json::array();
      for (const auto& [id, logprob] : scored.top) one["top_logprobs"].push_back(entry(id, logprob));
      content.push_back(std::move(one));
    }
    return {{"content", std::move(content)}, {"refusal", nullptr}};
  }
  Json tokens = Json::array(), values = Json::array(), tops = Json::array();
  for (std::size_t i = 0; i < logs.scored.size(); ++i) {
    const auto& scored = logs.scored[i];
    tokens.push_back(name(scored.token));
    if (i == 0 && logs.from_start) {
      values.push_back(nullptr);
      tops.push_back(nullptr);
      continue;
    }
    values.push_back(number(scored.logprob));
    if (request_.logprobs == 0) {
      tops.push_back(nullptr);
      continue;
    }
    // Keyed by text; tokens with the same bytes are told apart by id. Always contains the drawn token.
    Json top = Json::object();
    const auto add = [&](TokenId id, float logprob) {
      auto key = name(id);
      if (top.contains(key)) key = token_name(tokenizer_, id, true);
      top[key] = number(logprob);
    };
    bool among = false;
    for (const auto& [id, logprob] : scored.top) {
      add(id, logprob);
      among = among || id == scored.token;
    }
    if (!among) add(scored.token, scored.logprob);
    tops.push_back(std::move(top));
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(values)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", logs.offsets}};
}

}  // namespace essh::serve
