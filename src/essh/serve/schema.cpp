#include "essh/serve/schema.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "essh/base/json.h"
#include "essh/base/utf8.h"
#include "essh/serve/http.h"

namespace essh::serve {
namespace {

template <class... Args>
[[noreturn]] void refuse(const std::string& param, fmt::format_string<Args...> format, Args&&... args) {
  throw HttpError(400, fmt::format(format, std::forward<Args>(args)...), param, "invalid_value");
}

// The members of a body by name and type. null counts as absent.
class Members {
 public:
  explicit Members(const Json& body) : body_(body) {
    if (!body.is_object()) refuse("", "the body must be a JSON object");
  }

  const Json* find(const char* name) const {
    const auto found = body_.find(name);
    return found == body_.end() || found->is_null() ? nullptr : &*found;
  }

  std::int64_t whole(const char* name, std::int64_t least, std::int64_t most, std::int64_t otherwise) const {
    const auto* value = find(name);
    return value ? whole_number(*value, name, least, most) : otherwise;
  }

  static std::int64_t whole_number(const Json& value, const std::string& name, std::int64_t least, std::int64_t most) {
    const bool fits =
        value.is_number_integer() &&
        (!value.is_number_unsigned() || value.get<std::uint64_t>() <= static_cast<std::uint64_t>(INT64_MAX));
    if (!fits || value.get<std::int64_t>() < least || value.get<std::int64_t>() > most)
      refuse(name, "{} must be a whole number from {} to {}", name, least, most);
    return value.get<std::int64_t>();
  }

  double real(const char* name, double least, double most, double otherwise) const {
    const auto* value = find(name);
    return value ? real_number(*value, name, least, most) : otherwise;
  }

  static double real_number(const Json& value, const std::string& name, double least, double most) {
    const double number = value.is_number() ? value.get<double>() : std::nan("");
    if (!(number >= least && number <= most)) refuse(name, "{} must be a number from {} to {}", name, least, most);
    return number;
  }

  bool flag(const char* name, bool otherwise) const {
    const auto* value = find(name);
    if (value && !value->is_boolean()) refuse(name, "{} must be true or false", name);
    return value ? value->get<bool>() : otherwise;
  }

  std::string text(const char* name) const {
    const auto* value = find(name);
    if (value && !value->is_string()) refuse(name, "{} must be a string", name);
    return value ? value->get<std::string>() : std::string();
  }

  void refuse_unsupported(std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      const auto* value = find(name);
      if (value && !(value->is_boolean() && !value->get<bool>()) && !(value->is_array() && value->empty()))
        throw HttpError(400, fmt::format("{} is not supported; leave it out", name), name, "unsupported_parameter");
    }
  }

 private:
  const Json& body_;
};

std::vector<TokenId> read_ids(const Json& values, const std::string& name, const RequestLimits& limits) {
  if (static_cast<std::int64_t>(values.size()) > limits.prompt_tokens)
    refuse(name, "{} has {} tokens, the limit is {}", name, values.size(), limits.prompt_tokens);
  std::vector<TokenId> ids;
  ids.reserve(values.size());
  for (const auto& value : values) {
    const bool fits =
        value.is_number_integer() && value.get<std::int64_t>() >= 0 && value.get<std::int64_t>() < limits.vocabulary;
    if (!fits) refuse(name, "{}: token {} must be an id from 0 to {}", name, ids.size(), limits.vocabulary - 1);
    ids.push_back(value.get<TokenId>());
  }
  return ids;
}

std::vector<Prompt> read_prompts(const Json* value, const RequestLimits& limits) {
  const std::string name = "prompt";
  if (!value) refuse(name, "prompt is missing: a string, an array of strings, token ids, or arrays of token ids");
  if (value->is_string()) return {value->get<std::string>()};
  if (!value->is_array() || value->empty())
    refuse(name, "prompt must be a string, an array of strings, token ids, or arrays of token ids, and not empty");
  if (value->front().is_number()) return {read_ids(*value, name, limits)};
  if (static_cast<std::int64_t>(value->size()) > limits.sequences)
    refuse(name, "prompt has {} texts, the limit is {}", value->size(), limits.sequences);
  std::vector<Prompt> prompts;
  for (const auto& one : *value) {
    if (value->front().is_string() && one.is_string()) {
      prompts.emplace_back(one.get<std::string>());
    } else if (value->front().is_array() && one.is_array() && !one.empty()) {
      prompts.emplace_back(read_ids(one, name, limits));
    } else {
      refuse(name, "prompt {} is not of the kind of the first, or is empty", prompts.size());
    }
  }
  return prompts;
}

std::vector<std::string> read_stops(const Json* value) {
  std::vector<std::string> stops;
  const auto add = [&](const Json& stop) {
    if (!stop.is_string() || stop.text().size() > RequestLimits::kStopBytes)
      refuse("stop", "stop must be a string or an array of strings, each of at most {} bytes",
             RequestLimits::kStopBytes);
    stops.push_back(stop.get<std::string>());
  };
  if (!value) return stops;
  if (!value->is_array()) {
    add(*value);
    return stops;
  }
  if (value->size() > RequestLimits::kStops)
    refuse("stop", "stop has {} strings, the limit is {}", value->size(), RequestLimits::kStops);
  for (const auto& stop : *value) add(stop);
  return stops;
}

std::vector<std::pair<TokenId, float>> read_bias(const Json* value, const RequestLimits& limits) {
  std::vector<std::pair<TokenId, float>> bias;
  if (!value) return bias;
  if (!value->is_object() || value->size() > RequestLimits::kBiases)
    refuse("logit_bias", "logit_bias must be an object of at most {} token ids", RequestLimits::kBiases);
  for (const auto& [key, amount] : value->items()) {
    TokenId id = -1;
    const auto [end, status] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (status != std::errc{} || end != key.data() + key.size() || id < 0 || id >= limits.vocabulary)
      refuse("logit_bias", "logit_bias: a key must be a token id from 0 to {}", limits.vocabulary - 1);
    bias.emplace_back(id, static_cast<float>(Members::real_number(amount, "logit_bias", -100, 100)));
  }
  return bias;
}

// Fields of both completions and chat.
GenerationRequest read_common(const Members& members, const RequestLimits& limits) {
  GenerationRequest r;
  r.model = members.text("model");
  r.cache_salt = members.text("cache_salt");
  if (r.cache_salt.size() > RequestLimits::kSaltBytes)
    refuse("cache_salt", "cache_salt must have at most {} bytes", RequestLimits::kSaltBytes);
  r.sampling.temperature = members.real("temperature", 0, 100, 1);
  r.sampling.top_p = members.real("top_p", 0, 1, 1);
  r.sampling.top_k = std::max<std::int64_t>(0, members.whole("top_k", -1, 1 << 24, 0));
  r.sampling.min_p = members.real("min_p", 0, 1, 0);
  r.sampling.repetition_penalty = members.real("repetition_penalty", 0.01, 100, 1);
  r.presence_penalty = members.real("presence_penalty", -2, 2, 0);
  r.frequency_penalty = members.real("frequency_penalty", -2, 2, 0);
  r.logit_bias = read_bias(members.find("logit_bias"), limits);
  if (const auto* seed = members.find("seed")) {
    if (!seed->is_number_integer()) refuse("seed", "seed must be a whole number of 64 bits");
    r.sampling.seed =
        seed->is_number_unsigned() ? seed->get<std::uint64_t>() : static_cast<std::uint64_t>(seed->get<std::int64_t>());
    r.seeded = true;
  }
  r.state = members.text("state");
  r.save_state = members.flag("save_state", false);
  r.n = members.whole("n", 1, RequestLimits::kChoices, 1);
  if (r.n > 1 && r.save_state) refuse("save_state", "save_state needs n = 1");
  r.stops = read_stops(members.find("stop"));
  r.ignore_eos = members.flag("ignore_eos", false);
  r.token_ids = members.flag("return_tokens_as_token_ids", false);
  r.stream = members.flag("stream", false);
  if (const auto* options = members.find("stream_options")) {
    if (!options->is_object()) refuse("stream_options", "stream_options must be an object");
    if (!r.stream) refuse("stream_options", "stream_options needs \"stream\": true");
    r.include_usage = Members(*options).flag("include_usage", false);
  }
  members.refuse_unsupported({"tools", "functions", "suffix", "use_beam_search", "min_tokens", "prompt_logprobs",
                              "stop_token_ids", "guided_json", "guided_regex", "guided_choice", "guided_grammar"});
  if (const auto* best = members.find("best_of"); best && *best != r.n)
    throw HttpError(400, "best_of is not supported; leave it out", "best_of", "unsupported_parameter");
  if (const auto* format = members.find("response_format")) {
    if (!format->is_object() || Members(*format).text("type") != "text")
      throw HttpError(400, "response_format: only {\"type\": \"text\"} is supported", "response_format",
                      "unsupported_parameter");
  }
  return r;
}

std::string read_content(const Json* content) {
  const char* const wanted =
      "the content of a message must be a string or an array of {\"type\": \"text\", \"text\": ...}";
  if (!content) refuse("messages", "{}", wanted);
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) refuse("messages", "{}", wanted);
  std::string text;
  for (const auto& part : *content) {
    if (!part.is_object() || part.value("type", Json()) != "text" || !part.value("text", Json()).is_string())
      refuse("messages", "{}", wanted);
    text += part["text"].text();
  }
  return text;
}

}  // namespace

GenerationRequest parse_completion(const Json& body, const RequestLimits& limits) {
  const Members members(body);
  auto r = read_common(members, limits);
  r.prompts = read_prompts(members.find("prompt"), limits);
  r.add_special_tokens = members.flag("add_special_tokens", true);
  r.max_tokens = members.whole("max_tokens", 0, limits.max_tokens, std::min<std::int64_t>(16, limits.max_tokens));
  r.logprobs = static_cast<int>(members.whole("logprobs", 0, RequestLimits::kLogprobs, -1));
  r.echo = members.flag("echo", false);
  if (r.prompts.size() > 1 && (r.save_state || !r.state.empty()))
    refuse("prompt", "a state belongs to one prompt, not to {}", r.prompts.size());
  if (r.echo && !r.state.empty()) refuse("echo", "echo cannot show the text of a state");
  if (static_cast<std::int64_t>(r.prompts.size()) * r.n > limits.sequences)
    refuse("n", "{} prompts with n = {} are more than {} texts", r.prompts.size(), r.n, limits.sequences);
  return r;
}

GenerationRequest parse_chat(const Json& body, const RequestLimits& limits) {
  const Members members(body);
  auto r = read_common(members, limits);
  r.chat = true;
  // A template puts markers around a turn; conversations are served by the prefix cache instead.
  members.refuse_unsupported({"state", "save_state"});
  const auto* messages = members.find("messages");
  if (!messages || !messages->is_array() || messages->empty())
    refuse("messages", "messages must be an array of {{\"role\", \"content\"}}, and not empty");
  for (const auto& message : *messages) {
    if (!message.is_object()) refuse("messages", "a message must be an object with role and content");
    const Members one(message);
    const auto* given = one.find("role");
    auto role = given && given->is_string() ? given->get<std::string>() : std::string();
    if (role == "developer") role = "system";
    if (role != "system" && role != "user" && role != "assistant")
      refuse("messages", "the role of a message must be system, user or assistant");
    r.messages.push_back({role, read_content(one.find("content"))});
  }
  const char* const most = members.find("max_completion_tokens") ? "max_completion_tokens" : "max_tokens";
  r.max_tokens = members.whole(most, 0, limits.max_tokens, limits.max_tokens);
  const auto alternatives = members.whole("top_logprobs", 0, RequestLimits::kLogprobs, 0);
  if (members.flag("logprobs", false)) {
    r.logprobs = static_cast<int>(alternatives);
  } else if (alternatives > 0) {
    refuse("top_logprobs", "top_logprobs needs \"logprobs\": true");
  }
  return r;
}

TokenizeRequest parse_tokenize(const Json& body) {
  const Members members(body);
  const char* const name = members.find("content") ? "content" : "prompt";
  if (!members.find(name)) refuse("prompt", "prompt is missing: the text to tokenize");
  return {members.text(name), members.flag("add_special_tokens", true)};
}

std::vector<TokenId> parse_detokenize(const Json& body, const RequestLimits& limits) {
  const auto* tokens = Members(body).find("tokens");
  if (!tokens || !tokens->is_array()) refuse("tokens", "tokens must be an array of token ids");
  return read_ids(*tokens, "tokens", limits);
}

std::pair<std::string, std::string> split_model_name(std::string_view model) {
  const auto at = model.rfind('@');
  if (at == std::string_view::npos) return {std::string(model), ""};
  return {std::string(model.substr(0, at)), std::string(model.substr(at + 1))};
}

}  // namespace essh::serve
