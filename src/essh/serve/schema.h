#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "essh/base/json_fwd.h"
#include "essh/decode/sampler.h"
#include "essh/text/tokenizer.h"

// Strict parsing of request bodies: a wrong type or range is an HttpError 400 that names the field. Unknown fields are
// ignored; known fields without support are refused.
namespace essh::serve {

struct RequestLimits {
  std::int64_t vocabulary = 1;
  std::int64_t max_tokens = 65536;       // per choice
  std::int64_t prompt_tokens = 1 << 20;  // per prompt
  std::int64_t sequences = 2048;         // prompts times n
  static constexpr std::int64_t kChoices = 128;
  static constexpr std::int64_t kLogprobs = 20;
  static constexpr std::size_t kStops = 64;
  static constexpr std::size_t kStopBytes = 1024;
  static constexpr std::size_t kBiases = 4096;
  static constexpr std::size_t kSaltBytes = 256;
};

using Prompt = std::variant<std::string, std::vector<TokenId>>;

struct ChatMessage {
  std::string role;  // system, user or assistant
  std::string content;
};

struct GenerationRequest {
  bool chat = false;
  std::string model = {};
  std::string cache_salt = {};             // prompts with different salts share no cached state
  std::vector<Prompt> prompts = {};        // completions
  std::vector<ChatMessage> messages = {};  // chat
  bool add_special_tokens = true;
  SamplingOptions sampling = {};  // temperature 1 by default, as in the OpenAI API
  bool seeded = false;
  double presence_penalty = 0, frequency_penalty = 0;
  std::vector<std::pair<TokenId, float>> logit_bias = {};
  std::int64_t max_tokens = 16;
  std::int64_t n = 1;
  std::vector<std::string> stops = {};
  int logprobs = -1;       // alternatives per token; -1: none
  bool token_ids = false;  // names tokens in logprobs as "token_id:7"
  bool echo = false, stream = false, include_usage = false, ignore_eos = false;
  std::string state = {};   // id of the state to resume
  bool save_state = false;  // after the text
};

GenerationRequest parse_completion(const Json& body, const RequestLimits& limits);
GenerationRequest parse_chat(const Json& body, const RequestLimits& limits);

struct TokenizeRequest {
  std::string text = {};
  bool add_special_tokens = true;
};
TokenizeRequest parse_tokenize(const Json& body);
std::vector<TokenId> parse_detokenize(const Json& body, const RequestLimits& limits);

// "name@T4" -> {"name", "T4"}; "name" -> {"name", ""}.
std::pair<std::string, std::string> split_model_name(std::string_view model);

}  // namespace essh::serve
