#include "essh/serve/completion.h"

#include <gtest/gtest.h>

#include <cmath>

#include "essh/base/json.h"

namespace essh::serve {
namespace {

// Keeps the replies and events of a client.
class Recorder : public Exchange {
 public:
  void send(HttpReply reply) override { replies.push_back(std::move(reply)); }
  void start_events() override { started = true; }
  void event(std::string text) override { events.push_back(std::move(text)); }
  void comment(std::string text) override { comments.push_back(std::move(text)); }
  void end_events() override { ended = true; }

  std::vector<HttpReply> replies;
  std::vector<std::string> events, comments;
  bool started = false, ended = false;
};

struct Spoken {
  std::shared_ptr<Recorder> exchange = std::make_shared<Recorder>();
  std::unique_ptr<Tokenizer> tokenizer = make_byte_tokenizer();
  int status = 0;

  std::unique_ptr<Completion> start(GenerationRequest request, std::vector<std::string> prompts = {"p"}) {
    std::vector<EncodedPrompt> encoded;
    for (const auto& prompt : prompts)
      encoded.push_back({.tokens = tokenizer->encode(prompt), .text = prompt, .from_text = true});
    auto completion = std::make_unique<Completion>(std::move(request), encoded, ReplyHead{.id = "i", .model = "m"},
                                                   *tokenizer, exchange, [this](int s) { status = s; });
    completion->accepted();
    return completion;
  }

  // Passes the bytes of `text` as tokens until the choice is complete.
  static Finish speak(Completion& completion, std::size_t choice, std::string_view text) {
    for (const char byte : text) {
      if (!completion.token(choice, static_cast<unsigned char>(byte), true, nullptr)) {
        completion.ended(choice, Finish::Stop);
        return Finish::Stop;
      }
    }
    completion.ended(choice, Finish::Length);
    return Finish::Length;
  }

  Json reply() const { return parse_json(exchange->replies.at(0).body, "reply"); }
  // The concatenated text of a stream.
  std::string streamed() const {
    std::string text;
    for (const auto& event : exchange->events) {
      if (event == "[DONE]") continue;
      const auto chunk = parse_json(event, "event");
      for (const auto& choice : chunk.at("choices"))
        text += choice.contains("text") ? choice["text"].get<std::string>()
                                        : choice["delta"].value("content", std::string());
    }
    return text;
  }
};

TEST(Completion, StopsAcrossTokensAndHoldsPartialCharacters) {
  for (const bool stream : {false, true}) {
    for (const std::string said : {"one EN", "one END two", "caf\xC3\xA9 END", "cut \xE2\x82", "\xFF x", "END"}) {
      Spoken s;
      auto completion = s.start({.max_tokens = 1000, .stops = {"END"}, .stream = stream});
      const auto finish = Spoken::speak(*completion, 0, said);
      EXPECT_EQ(finish == Finish::Stop, said.find("END") != std::string::npos);
      auto wanted = said.substr(0, said.find("END"));
      if (said == "cut \xE2\x82") wanted = "cut \xEF\xBF\xBD";
      if (said == "\xFF x") wanted = "\xEF\xBF\xBD x";
      EXPECT_EQ(stream ? s.streamed() : s.reply()["choices"][0]["text"].get<std::string>(), wanted);
      EXPECT_EQ(s.status, 200);
      if (!stream) continue;
      EXPECT_TRUE(s.exchange->started && s.exchange->ended);
      EXPECT_EQ(s.exchange->events.back(), "[DONE]");
      const auto last = parse_json(s.exchange->events.at(s.exchange->events.size() - 2), "event");
      EXPECT_EQ(last["choices"][0]["finish_reason"], finish == Finish::Stop ? "stop" : "length");
      for (std::size_t i = 0; i + 2 < s.exchange->events.size(); ++i)
        EXPECT_TRUE(parse_json(s.exchange->events[i], "event")["choices"][0]["finish_reason"].is_null());
    }
  }
}

TEST(Completion, UsageIsTheLastChunkAndNullBefore) {
  Spoken s;
  auto completion = s.start({.max_tokens = 10, .stream = true, .include_usage = true}, {"abc"});
  Spoken::speak(*completion, 0, "xy");
  const auto& events = s.exchange->events;
  ASSERT_GE(events.size(), 3u);
  for (std::size_t i = 0; i + 2 < events.size(); ++i) EXPECT_TRUE(parse_json(events[i], "event").at("usage").is_null());
  const auto last = parse_json(events[events.size() - 2], "event");
  EXPECT_TRUE(last.at("choices").empty());
  EXPECT_EQ(last.at("usage").at("prompt_tokens"), 3);
  EXPECT_EQ(last.at("usage").at("completion_tokens"), 2);
  EXPECT_EQ(last.at("usage").at("total_tokens"), 5);
}

TEST(Completion, EchoAndLogprobsKeepTheShapeThatEvaluationReads) {
  for (const bool stream : {false, true}) {
    Spoken s;
    auto completion = s.start({.max_tokens = 1, .logprobs = 1, .echo = true, .stream = stream}, {"a\xC3\xA9"});
    completion->prompt_scored(0, std::vector<Scored>{{0xC3, -0.1f, {{0xC3, -0.1f}}}});
    completion->prompt_scored(0, std::vector<Scored>{{0xA9, -2.5f, {{7, -0.25f}}}});
    const Scored end{256, -1.5f, {{256, -1.5f}}};
    completion->token(0, 256, false, &end);  // the arrays contain the end of text
    completion->ended(0, Finish::Stop);
    const auto body = stream ? parse_json(s.exchange->events.at(0), "event") : s.reply();
    const auto& choice = body["choices"][0];
    EXPECT_EQ(choice["text"], "a\xC3\xA9");
    EXPECT_EQ(choice["finish_reason"], "stop");
    const auto& logs = choice["logprobs"];
    EXPECT_EQ(to_text(logs["token_logprobs"]), "[null,-0.1,-2.5,-1.5]");
    EXPECT_EQ(to_text(logs["top_logprobs"]),
              R"([null,{"bytes:\\xc3":-0.1},{"\u0007":-0.25,"bytes:\\xa9":-2.5},{"<|endoftext|>":-1.5}])");
    EXPECT_EQ(to_text(logs["text_offset"]), "[0,1,2,2]");
    EXPECT_EQ(logs["tokens"].size(), 4u);
  }
}

TEST(Completion, ChoicesOfSeveralPrompts) {
  Spoken s;
  auto completion = s.start({.max_tokens = 5, .n = 2, .echo = true}, {"A", "B"});
  for (const std::size_t choice : {3, 0, 2, 1}) {
    EXPECT_TRUE(s.exchange->replies.empty());
    Spoken::speak(*completion, choice, std::to_string(choice));
  }
  const auto body = s.reply();
  ASSERT_EQ(body["choices"].size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(body["choices"][i]["index"], i);
    EXPECT_EQ(body["choices"][i]["text"], (i < 2 ? "A" : "B") + std::to_string(i));
  }
  EXPECT_EQ(body["usage"]["prompt_tokens"], 2);
}

TEST(Completion, Chat) {
  Spoken s;
  auto completion = s.start({.chat = true, .max_tokens = 5, .logprobs = 1, .stream = true});
  const Scored scored{'h', -1, {{'h', -1.0f}}};
  completion->token(0, 'h', true, &scored);
  completion->ended(0, Finish::Length);
  const auto first = parse_json(s.exchange->events.at(0), "event");
  EXPECT_EQ(first["object"], "chat.completion.chunk");
  EXPECT_EQ(first["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(s.streamed(), "h");
  const auto entry = parse_json(s.exchange->events.at(1), "event")["choices"][0]["logprobs"]["content"][0];
  EXPECT_EQ(entry["token"], "h");
  EXPECT_EQ(to_text(entry["bytes"]), "[104]");
  EXPECT_EQ(entry["top_logprobs"].size(), 1u);
}

TEST(Completion, ErrorsBeforeAndWithinAStream) {
  Spoken plain;
  plain.start({})->failed(HttpError(503, "x"));
  EXPECT_EQ(plain.exchange->replies.at(0).status, 503);
  EXPECT_EQ(plain.status, 503);
  Spoken stream;
  stream.start({.stream = true})->failed(HttpError(503, "x"));
  EXPECT_TRUE(stream.exchange->replies.empty());
  EXPECT_TRUE(parse_json(stream.exchange->events.back(), "event").contains("error"));
  EXPECT_TRUE(stream.exchange->ended);
}

TEST(Score, IsTheLogOfTheSoftmaxAndNeverInfinite) {
  const std::vector<float> logits = {1, 3, 3, -INFINITY, NAN};
  const auto scored = score(logits, 0, 3);
  const double sum = std::log(std::exp(1.0) + 2 * std::exp(3.0));
  EXPECT_FLOAT_EQ(scored.logprob, static_cast<float>(1 - sum));
  ASSERT_EQ(scored.top.size(), 3u);
  EXPECT_EQ(scored.top[0].first, 1);  // ties are ordered by id
  EXPECT_EQ(scored.top[1].first, 2);
  EXPECT_EQ(scored.top[2], (std::pair<TokenId, float>{0, scored.logprob}));
  EXPECT_EQ(score(logits, 3, 0).logprob, kLeastLogprob);
  EXPECT_EQ(score(logits, 4, 0).logprob, kLeastLogprob);
  EXPECT_TRUE(score(logits, 0, 0).top.empty());
}

TEST(Tokens, HaveNamesOfTheirOwn) {
  const auto tokenizer = make_byte_tokenizer();
  EXPECT_EQ(token_name(*tokenizer, 'a'), "a");
  EXPECT_EQ(token_name(*tokenizer, 0xE2), "bytes:\\xe2");
  EXPECT_EQ(token_name(*tokenizer, 300), "token_id:300");
  EXPECT_EQ(token_name(*tokenizer, 'a', true), "token_id:97");
}

}  // namespace
}  // namespace essh::serve
