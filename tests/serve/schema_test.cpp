#include "essh/serve/schema.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "essh/base/json.h"
#include "essh/serve/http.h"

namespace essh::serve {
namespace {

const RequestLimits kLimits{.vocabulary = 100, .max_tokens = 50, .prompt_tokens = 8, .sequences = 6};

GenerationRequest completion(const std::string& text) {
  return parse_completion(parse_json(text, "body"), kLimits);
}

// The param and code of the HttpError; fails if the body is accepted.
std::pair<std::string, std::string> refusal(const std::string& text, bool chat = false) {
  try {
    const auto body = parse_json(text, "body");
    chat ? parse_chat(body, kLimits) : parse_completion(body, kLimits);
  } catch (const HttpError& error) {
    EXPECT_EQ(error.status(), 400) << text;
    const auto shown = parse_json(error.body(), "error").at("error");
    EXPECT_EQ(shown.at("type"), "invalid_request_error");
    const auto word = [&](const char* name) {
      return shown.at(name).is_null() ? "" : shown.at(name).get<std::string>();
    };
    return {word("param"), word("code")};
  }
  ADD_FAILURE() << text << " was accepted";
  return {};
}

TEST(Schema, PromptsOfEveryKind) {
  EXPECT_EQ(completion(R"({"prompt": "a"})").prompts, std::vector<Prompt>{"a"});
  EXPECT_EQ(completion(R"({"prompt": ["a", "b"]})").prompts, (std::vector<Prompt>{"a", "b"}));
  EXPECT_EQ(completion(R"({"prompt": [1, 2]})").prompts, (std::vector<Prompt>{std::vector<TokenId>{1, 2}}));
  EXPECT_EQ(completion(R"({"prompt": [[1], [2, 3]]})").prompts,
            (std::vector<Prompt>{std::vector<TokenId>{1}, std::vector<TokenId>{2, 3}}));
  for (const char* prompt : {"null", "[]", "{}", "7", "[[]]", "[1, \"a\"]", "[\"a\", 1]", "[[1], \"a\"]", "[100]",
                             "[-1]", "[1.5]", "[99999999999999999999]", "[18446744073709551615]", "[1,2,3,4,5,6,7,8,9]",
                             "[\"\",\"\",\"\",\"\",\"\",\"\",\"\"]", "[true]"}) {
    EXPECT_EQ(refusal(fmt::format(R"({{"prompt": {}}})", prompt)).first, "prompt") << prompt;
  }
}

TEST(Schema, DefaultsAreThoseOfTheApi) {
  const auto r = completion(R"({"prompt": "a", "some_new_field": {"x": []}, "stop": null, "n": null})");
  EXPECT_EQ(r.sampling.temperature, 1);
  EXPECT_EQ(r.sampling.top_p, 1);
  EXPECT_EQ(r.max_tokens, 16);
  EXPECT_EQ(r.n, 1);
  EXPECT_EQ(r.logprobs, -1);
  EXPECT_FALSE(r.stream || r.echo || r.seeded || r.ignore_eos);
  EXPECT_TRUE(r.add_special_tokens);
  EXPECT_TRUE(r.stops.empty());
}

TEST(Schema, ValuesArrive) {
  const auto r = completion(R"({"prompt": "a", "temperature": 0, "top_p": 0.5, "top_k": -1, "min_p": 0.1, "n": 3,
      "max_tokens": 0, "seed": -1, "stop": "x", "echo": true, "logprobs": 5, "stream": true, "repetition_penalty": 1.5,
      "stream_options": {"include_usage": true}, "presence_penalty": -2, "frequency_penalty": 2, "logit_bias": {"7": -100}})");
  EXPECT_EQ(r.sampling.temperature, 0);
  EXPECT_EQ(r.sampling.top_k, 0);
  EXPECT_EQ(r.sampling.seed, UINT64_MAX);
  EXPECT_TRUE(r.seeded && r.echo && r.stream && r.include_usage);
  EXPECT_EQ(r.stops, std::vector<std::string>{"x"});
  EXPECT_EQ(r.logprobs, 5);
  EXPECT_EQ(r.max_tokens, 0);
  EXPECT_EQ(r.logit_bias, (std::vector<std::pair<TokenId, float>>{{7, -100.0f}}));
  EXPECT_EQ(completion(R"({"prompt": "a", "seed": 18446744073709551615})").sampling.seed, UINT64_MAX);
  EXPECT_EQ(completion(R"({"prompt": "a", "stop": ["x", "y"]})").stops.size(), 2u);
}

TEST(Schema, EveryNumberHasItsKindAndRange) {
  const std::vector<std::string> bad = {"\"1\"",  "true",  "[1]", "{}",
                                        "-1e300", "1e300", "-3",  "4294967296000000000000"};
  for (const char* name : {"temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty",
                           "frequency_penalty", "max_tokens", "n", "logprobs", "top_k"}) {
    for (const auto& value : bad) {
      EXPECT_EQ(refusal(fmt::format(R"({{"prompt": "a", "{}": {}}})", name, value)).first, name) << value;
    }
  }
  for (const auto& [name, value] : std::vector<std::pair<const char*, const char*>>{{"max_tokens", "51"},
                                                                                    {"max_tokens", "3.7"},
                                                                                    {"n", "0"},
                                                                                    {"n", "129"},
                                                                                    {"logprobs", "21"},
                                                                                    {"seed", "0.5"},
                                                                                    {"seed", "1180591620717411303424"},
                                                                                    {"seed", "\"x\""},
                                                                                    {"stream", "1"},
                                                                                    {"echo", "\"yes\""},
                                                                                    {"stop", "7"},
                                                                                    {"stop", "[7]"},
                                                                                    {"logit_bias", "[]"},
                                                                                    {"logit_bias", "{\"x\": 1}"},
                                                                                    {"logit_bias", "{\"100\": 1}"},
                                                                                    {"logit_bias", "{\"1\": 101}"},
                                                                                    {"logit_bias", "{\"-1\": 1}"},
                                                                                    {"model", "7"},
                                                                                    {"stream_options", "[]"},
                                                                                    {"stream_options", "{}"},
                                                                                    {"n", "7"}}) {
    EXPECT_EQ(refusal(fmt::format(R"({{"prompt": "a", "{}": {}}})", name, value)).first, name) << value;
  }
  EXPECT_EQ(refusal(R"([1])").first, "");
}

TEST(Schema, StopsAreBounded) {
  const std::string body = R"({"prompt": "a", "stop": )";
  EXPECT_EQ(refusal(body + "\"" + std::string(RequestLimits::kStopBytes + 1, 'x') + "\"}").first, "stop");
  std::string many = "[\"x\"";
  for (std::size_t i = 0; i < RequestLimits::kStops; ++i) many += ",\"x\"";
  EXPECT_EQ(refusal(body + many + "]}").first, "stop");
}

TEST(Schema, WhatIsNotSupportedIsRefusedByName) {
  for (const auto& [name, value] :
       std::vector<std::pair<const char*, const char*>>{{"suffix", "\"x\""},
                                                        {"best_of", "2"},
                                                        {"tools", "[{}]"},
                                                        {"min_tokens", "3"},
                                                        {"guided_regex", "\"a\""},
                                                        {"response_format", "{\"type\": \"json_object\"}"},
                                                        {"response_format", "[]"},
                                                        {"use_beam_search", "true"}}) {
    const auto [param, code] = refusal(fmt::format(R"({{"prompt": "a", "{}": {}}})", name, value));
    EXPECT_EQ(param, name);
    EXPECT_EQ(code, "unsupported_parameter");
  }
  EXPECT_NO_THROW(
      completion(R"({"prompt": "a", "best_of": 1, "tools": [], "use_beam_search": false, "suffix": null})"));
}

TEST(Schema, Chat) {
  const auto r = parse_chat(parse_json(R"({"messages": [{"role": "developer", "content": "be"},
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
      "max_completion_tokens": 7, "logprobs": true, "top_logprobs": 2})",
                                       "body"),
                            kLimits);
  ASSERT_EQ(r.messages.size(), 2u);
  EXPECT_EQ(r.messages[0].role, "system");
  EXPECT_EQ(r.messages[1].content, "ab");
  EXPECT_EQ(r.max_tokens, 7);
  EXPECT_EQ(r.logprobs, 2);
  EXPECT_EQ(parse_chat(parse_json(R"({"messages": [{"role": "user", "content": ""}]})", "body"), kLimits).max_tokens,
            50);
  for (const char* messages :
       {"null", "[]", "{}", "\"x\"", "[7]", "[{}]", R"([{"role": "tool", "content": "x"}])", R"([{"role": "user"}])",
        R"([{"role": "user", "content": 7}])", R"([{"role": 7, "content": "x"}])",
        R"([{"role": "user", "content": [{"type": "image_url"}]}])", R"([{"role": "user", "content": [7]}])"}) {
    EXPECT_EQ(refusal(fmt::format(R"({{"messages": {}}})", messages), true).first, "messages") << messages;
  }
  EXPECT_EQ(refusal(R"({"messages": [{"role": "user", "content": "x"}], "top_logprobs": 2})", true).first,
            "top_logprobs");
}

TEST(Schema, NamesOfModels) {
  EXPECT_EQ(split_model_name("m"), (std::pair<std::string, std::string>{"m", ""}));
  EXPECT_EQ(split_model_name("m@T4"), (std::pair<std::string, std::string>{"m", "T4"}));
  EXPECT_EQ(split_model_name("a@b@xi=0.3"), (std::pair<std::string, std::string>{"a@b", "xi=0.3"}));
}

TEST(Schema, Tokenize) {
  EXPECT_EQ(parse_tokenize(parse_json(R"({"content": "a"})", "body")).text, "a");
  EXPECT_FALSE(
      parse_tokenize(parse_json(R"({"prompt": "a", "add_special_tokens": false})", "body")).add_special_tokens);
  EXPECT_THROW(parse_tokenize(parse_json("{}", "body")), HttpError);
  EXPECT_EQ(parse_detokenize(parse_json(R"({"tokens": [1]})", "body"), kLimits), std::vector<TokenId>{1});
  EXPECT_THROW(parse_detokenize(parse_json(R"({"tokens": [100]})", "body"), kLimits), HttpError);
}

}  // namespace
}  // namespace essh::serve
