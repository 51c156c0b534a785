#include <gtest/gtest.h>

#include <future>

#include "essh/base/json.h"
#include "tests/serve/live_server.h"

namespace essh::serve {
namespace {

// wait() returns after the reply or the end of the stream.
class Answer : public Exchange {
 public:
  void send(HttpReply reply) override {
    got = std::move(reply);
    done_.set_value();
  }
  void start_events() override { got.status = 200; }
  void event(std::string text) override { events.push_back(std::move(text)); }
  void comment(std::string) override {}
  void end_events() override { done_.set_value(); }
  void wait() { done_.get_future().wait(); }

  HttpReply got;
  std::vector<std::string> events;

 private:
  std::promise<void> done_;
};

std::string nested(std::string_view open, std::string_view close, int depth) {
  std::string text;
  for (int i = 0; i < depth; ++i) text += open;
  text += "1";
  for (int i = 0; i < depth; ++i) text += close;
  return text;
}

// Raw text for the body; not all of it is JSON.
std::vector<std::string> bad_values() {
  std::vector<std::string> values = {"null",
                                     "true",
                                     "false",
                                     "-1",
                                     "0",
                                     "1",
                                     "-0.0",
                                     "0.5",
                                     "3.7",
                                     "1e30",
                                     "-1e300",
                                     "1e308",
                                     "1e309",
                                     "-1e999",
                                     "1e-400",
                                     "2147483648",
                                     "9223372036854775807",
                                     "9223372036854775808",
                                     "18446744073709551615",
                                     "18446744073709551616",
                                     "-9223372036854775809",
                                     "1180591620717411303424",
                                     "NaN",
                                     "nan",
                                     "-NaN",
                                     "Infinity",
                                     "-Infinity",
                                     "0x10",
                                     "01",
                                     "+1",
                                     ".5",
                                     "1.",
                                     "\"\"",
                                     "\"x\"",
                                     "\"1\"",
                                     "\"NaN\"",
                                     "\"true\"",
                                     "\"\\u0000\"",
                                     "\"\\ud800\"",
                                     "\"\\udc00\\ud800\"",
                                     "\"\xff\"",
                                     "\"\xc0\x80\"",
                                     "\"\xed\xa0\x80\"",
                                     "\"\xf4\x90\x80\x80\"",
                                     "\"a\nb\"",
                                     "\"\xef\xbb\xbf\"",
                                     "'x'",
                                     "[]",
                                     "[null]",
                                     "[[]]",
                                     "[[[1]]]",
                                     "[-1]",
                                     "[257]",
                                     "[1099511627776]",
                                     "[0.5]",
                                     "[\"x\", 1]",
                                     "[[1], \"x\"]",
                                     "[1, \"x\"]",
                                     "[true]",
                                     "[{}]",
                                     "[\"\"]",
                                     "[\"s\", null]",
                                     "{}",
                                     "{\"type\": \"text\"}",
                                     "{\"type\": 1}",
                                     "{\"1\": 1}",
                                     "{\"1\": 1e9}",
                                     "{\"1\": null}",
                                     "{\"x\": \"y\"}",
                                     "{\"-1\": 1}",
                                     "{\"999999\": 1}",
                                     "{\"1\": 1, \"1\": 2}",
                                     "{\"include_usage\": 7}",
                                     "[{\"role\": \"user\"}]",
                                     "[{\"role\": 7, \"content\": \"x\"}]",
                                     "[{\"role\": \"tool\", \"content\": \"x\"}]",
                                     "[{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]",
                                     "[{\"role\": \"user\", \"content\": {}}]",
                                     "[{\"role\": \"user\", \"content\": [7]}]",
                                     "[{\"role\": \"user\", \"content\": \"\\ud800\"}]",
                                     "",
                                     "x",
                                     "}",
                                     "]",
                                     ",",
                                     "\"",
                                     "/* */ 1",
                                     "1 1"};
  values.push_back(nested("[", "]", 60));
  values.push_back(nested("[", "]", 70));
  values.push_back(nested("[", "]", 3000));
  values.push_back(nested("{\"a\":", "}", 60));
  values.push_back(nested("{\"a\":", "}", 3000));
  values.push_back("\"" + std::string(5000, 'l') + "\"");
  values.push_back("\"" + std::string(1 << 15, 'x') + "\"");
  std::string stops = "[\"s\"", biases = "{\"0\": 1";
  for (int i = 0; i < 200; ++i) stops += ", \"s\"";
  for (int i = 1; i < 5000; ++i) biases += fmt::format(", \"{}\": 1", i);
  values.push_back(stops + "]");
  values.push_back(biases + "}");
  return values;
}

constexpr std::string_view kFields[] = {"model",
                                        "prompt",
                                        "messages",
                                        "max_tokens",
                                        "max_completion_tokens",
                                        "temperature",
                                        "top_p",
                                        "top_k",
                                        "min_p",
                                        "n",
                                        "stop",
                                        "seed",
                                        "echo",
                                        "logprobs",
                                        "top_logprobs",
                                        "repetition_penalty",
                                        "presence_penalty",
                                        "frequency_penalty",
                                        "logit_bias",
                                        "stream",
                                        "stream_options",
                                        "ignore_eos",
                                        "add_special_tokens",
                                        "return_tokens_as_token_ids",
                                        "cache_salt",
                                        "best_of",
                                        "suffix",
                                        "tools",
                                        "functions",
                                        "use_beam_search",
                                        "min_tokens",
                                        "prompt_logprobs",
                                        "stop_token_ids",
                                        "guided_json",
                                        "response_format",
                                        "tokens",
                                        "content",
                                        "state",
                                        "save_state",
                                        "unknown"};

// Faults S6 to S9: for any value of any field, the status is 200 or a 4xx with every member of an error.
TEST(BadValues, EveryFieldOfEveryEndpoint) {
  ApiOptions options;
  options.limits.max_tokens = 8;
  options.limits.prompt_tokens = 4096;
  ServedModel model(options);
  const std::pair<std::string_view, std::string_view> bases[] = {
      {"/v1/completions", R"("prompt": "x")"},
      {"/v1/chat/completions", R"("messages": [{"role": "user", "content": "x"}])"},
      {"/tokenize", R"("prompt": "x")"},
      {"/detokenize", R"("tokens": [1])"}};
  const auto values = bad_values();
  std::size_t accepted = 0, refused = 0;
  for (const auto& [path, base] : bases) {
    for (const auto field : kFields) {
      const bool of_tokens =
          field == "prompt" || field == "content" || field == "tokens" || field == "add_special_tokens";
      if (path.ends_with("tokenize") && !of_tokens) continue;
      for (const auto& value : values) {
        const auto member = fmt::format("\"{}\": {}", field, value);
        // Replaces the same field of the request, then repeats it as a duplicate key.
        const bool same = base.starts_with(fmt::format("\"{}\"", field));
        for (const bool twice : {false, true}) {
          if (twice && !same) continue;
          const auto body = same && !twice          ? fmt::format("{{{}, \"max_tokens\": 1}}", member)
                            : field == "max_tokens" ? fmt::format("{{{}, {}}}", base, member)
                                                    : fmt::format("{{{}, \"max_tokens\": 1, {}}}", base, member);
          const auto answer = std::make_shared<Answer>();
          model.api.handle({.method = "POST", .path = std::string(path), .body = body}, answer);
          answer->wait();
          const int status = answer->got.status;
          const auto shown = [&] {
            return fmt::format("{} {}: {} -> {}", path, field, value.substr(0, 60), answer->got.body);
          };
          if (status == 200) {
            ++accepted;
            ASSERT_FALSE(twice) << shown();
            for (const auto& event : answer->events) ASSERT_EQ(event.find("\"error\""), std::string::npos) << event;
            continue;
          }
          ++refused;
          ASSERT_TRUE(status == 400 || status == 404) << shown();
          const auto error = parse_json(answer->got.body, "reply").at("error");
          ASSERT_EQ(error.size(), 4u) << shown();
          ASSERT_TRUE(error.at("message").is_string() &&
                      error.at("type") == (status == 404 ? "not_found_error" : "invalid_request_error"))
              << shown();
          ASSERT_TRUE(error.contains("param") && error.contains("code")) << shown();
        }
      }
    }
  }
  EXPECT_GT(accepted, 1000u);
  EXPECT_GT(refused, 5000u);
}

}  // namespace
}  // namespace essh::serve
