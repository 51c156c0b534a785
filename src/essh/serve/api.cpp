#include "essh/serve/api.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <random>

#include "essh/base/error.h"
#include "essh/base/json.h"
#include "essh/base/sha256.h"
#include "essh/base/utf8.h"
#include "essh/serve/console.h"
#include "essh/store/provenance.h"
#include "essh/text/utf8.h"

namespace essh::serve {
namespace {

constexpr std::string_view kModel = "/v1/models/", kState = "/v1/states/";

struct Route {
  std::string_view path, method;
};
constexpr std::array<Route, 9> kRoutes = {{{"/health", "GET"},
                                           {"/metrics", "GET"},
                                           {"/v1/models", "GET"},
                                           {"/tokenizer_info", "GET"},
                                           {"/frontier", "GET"},
                                           {"/tokenize", "POST"},
                                           {"/detokenize", "POST"},
                                           {"/v1/completions", "POST"},
                                           {"/v1/chat/completions", "POST"}}};

const Route* find_route(std::string_view path) {
  for (const auto& route : kRoutes) {
    if (route.path == path) return &route;
  }
  static constexpr Route kOneModel{"/v1/models", "GET"}, kConsole{"/", "GET"}, kOneState{"/v1/states", "DELETE"};
  if (is_console(path)) return &kConsole;
  if (path.starts_with(kState)) return &kOneState;
  return path.starts_with(kModel) && path.size() > kModel.size() ? &kOneModel : nullptr;
}

std::string lower(std::string text) {
  for (auto& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

// "localhost:8080" -> "localhost", "[::1]:8080" -> "[::1]".
std::string host_name(const std::string& host) {
  const auto end = host.starts_with('[') ? host.find(']') : host.find(':');
  return lower(host.starts_with('[') ? host.substr(0, end == std::string::npos ? end : end + 1) : host.substr(0, end));
}

// Takes the same time for any two texts of equal length.
bool equal_in_constant_time(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

bool below(const Tier& a, const Tier& b) {
  return a.capacity.channels <= b.capacity.channels && a.capacity.ffn <= b.capacity.ffn && a.capacity != b.capacity;
}

std::uint64_t random_number() {
  thread_local std::random_device device;
  return (static_cast<std::uint64_t>(device()) << 32) | device();
}

// Decodes "%40" and the like.
std::string percent_decoded(std::string_view text) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool coded = text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 && digit(text[i + 2]) >= 0;
    out += coded ? static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2])) : text[i];
    if (coded) i += 2;
  }
  return out;
}

}  // namespace

std::vector<Tier> reduced_tiers(const ModelConfig& config, const Tier& tier) {
  std::vector<Tier> tiers = {tier};
  for (const auto& one : tiers_of(config)) {
    if (below(one, tier)) tiers.push_back(one);
  }
  std::ranges::sort(tiers, [](const Tier& a, const Tier& b) { return below(b, a); });
  return tiers;
}

Api::Api(ApiOptions options, const Engine& engine, const Tokenizer& tokenizer, Scheduler& scheduler, Metrics& metrics)
    : options_(std::move(options)),
      engine_(engine),
      tokenizer_(tokenizer),
      scheduler_(scheduler),
      metrics_(metrics),
      default_tier_(find_tier(options_.folder, engine.config(), options_.tier)),
      tiers_(tiers_of(engine.config())),
      levels_(reduced_tiers(engine.config(), default_tier_)),
      hash_(engine.model().hash()),
      frontier_(to_text(frontier_document(engine.config(), hash_, options_.frontier))),
      started_(std::time(nullptr)) {
  options_.limits.vocabulary = engine.config().vocab_size;
  for (const auto& key : options_.keys) key_hashes_.push_back(sha256_of_text(key));
  capacities_.push_back(default_tier_.capacity);
  for (const auto& tier : tiers_) capacities_.push_back(tier.capacity);
  capacities_.push_back(full_capacity(engine.config()));
  options_.max_capacities += capacities_.size();
}

std::optional<HttpReply> Api::refuse(const HttpRequest& head) {
  const auto check = [&] {
    if (!options_.hosts.empty() && std::ranges::find(options_.hosts, host_name(head.host)) == options_.hosts.end())
      throw HttpError(403, "this name is not served here; add it with --allowed-host", "", "host_not_allowed");
    const auto* route = find_route(head.path);
    const bool open = head.path == "/health" || is_console(head.path);
    if (!key_hashes_.empty() && !open) {
      constexpr std::string_view kScheme = "Bearer ";
      const bool given = head.authorization.starts_with(kScheme);
      const auto hash = sha256_of_text(given ? head.authorization.substr(kScheme.size()) : std::string());
      bool known = false;
      for (const auto& key : key_hashes_) known = equal_in_constant_time(key, hash) || known;
      if (!given || !known)
        throw HttpError(401, "a valid API key is needed: Authorization: Bearer KEY", "", "invalid_api_key");
    }
    if (!route) throw HttpError(404, "there is no such endpoint; docs/serving.md lists them", "", "unknown_url");
    if (route->method != head.method)
      throw HttpError(405, fmt::format("this endpoint takes {}", route->method), "", "method_not_allowed");
    // A page of another site can send this type only after a CORS preflight, which the server does not grant.
    if (route->method == "POST" && !lower(head.content_type).starts_with("application/json"))
      throw HttpError(415, "the body must be JSON, with Content-Type: application/json", "", "unsupported_media_type");
  };
  try {
    check();
    return std::nullopt;
  } catch (const HttpError& error) {
    metrics_.answered("refused", error.status(), "");
    auto reply = error.reply();
    if (error.status() == 405) reply.headers.emplace_back("Allow", std::string(find_route(head.path)->method));
    return reply;
  }
}

HttpReply Api::malformed(int status, const std::string& message) {
  metrics_.answered("refused", status, "");
  return HttpError(status, message, "", "bad_request").reply();
}

bool Api::quick(const HttpRequest& request) const {
  return request.method == "GET";
}

void Api::handle(HttpRequest request, std::shared_ptr<Exchange> exchange) noexcept {
  const auto* route = find_route(request.path);
  const std::string endpoint(route ? route->path : "");
  try {
    if (endpoint == "/v1/completions" || endpoint == "/v1/chat/completions") return generate(request, exchange);
    auto reply = answer(request);
    metrics_.answered(endpoint, reply.status, "");
    exchange->send(std::move(reply));
  } catch (const std::exception& error) {
    const auto shown = as_http_error(error);
    metrics_.answered(endpoint, shown.status(), "");
    exchange->send(shown.reply());
  }
}

HttpReply Api::answer(const HttpRequest& request) {
  if (request.path == "/health") return health();
  if (request.path == "/metrics") return metrics();
  if (request.path == "/v1/models") return models();
  if (request.path == "/tokenizer_info") return tokenizer_info();
  if (request.path == "/frontier") return frontier();
  if (is_console(request.path)) return console_reply(request);
  if (request.path == "/tokenize") return tokenize(request);
  if (request.path == "/detokenize") return detokenize(request);
  if (request.path.starts_with(kState)) return delete_state(request);
  return model(percent_decoded(std::string_view(request.path).substr(kModel.size())));
}

HttpReply Api::health() const {
  if (scheduler_.broken()) return {.status = 500, .body = R"({"status":"failed"})"};
  if (scheduler_.draining()) return {.status = 503, .body = R"({"status":"draining"})"};
  return {.body = R"({"status":"ok"})"};
}

HttpReply Api::metrics() const {
  auto gauges = scheduler_.gauges();
  gauges.connections = connections;
  return {.body = metrics_.text(gauges), .content_type = "text/plain; version=0.0.4; charset=utf-8"};
}

Json Api::describe(const std::string& id, const Tier& tier) const {
  Json entry = {{"id", id}, {"object", "model"}, {"created", started_}, {"owned_by", "essh"}, {"tier", tier.name}};
  entry["capacity"] = sizes_of(engine_.config(), tier.capacity);
  if (tier.budget > 0) entry["xi"] = tier.budget;
  entry["essh"] = describe_cost(engine_.config(), tier.capacity);
  return entry;
}

HttpReply Api::models() const {
  Json data = Json::array({describe(options_.name, default_tier_)});
  for (const auto& tier : tiers_) data.push_back(describe(options_.name + "@" + tier.name, tier));
  return {.body = to_text({{"object", "list"}, {"data", std::move(data)}})};
}

HttpReply Api::model(const std::string& id) {
  return {.body = to_text(describe(id, tier_of(id, false)))};
}

HttpReply Api::tokenizer_info() const {
  const auto text = [&](std::optional<TokenId> id) { return id ? Json(token_name(tokenizer_, *id)) : Json(nullptr); };
  return {.body = to_text({{"bos_token", text(tokenizer_.bos())},
                           {"eos_token", text(tokenizer_.eos())},
                           {"pad_token", nullptr},
                           {"vocab_size", tokenizer_.vocab_size()},
                           {"chat_template", chat_template_name(options_.chat)},
                           {"chat_markers", tokenizer_.token_id(end_of_turn(options_.chat)).has_value()}})};
}

Json Api::body_of(const HttpRequest& request) const {
  return parse_json(request.body, "body", {.bytes = options_.max_body, .values = options_.max_body});
}

HttpReply Api::tokenize(const HttpRequest& request) const {
  const auto r = parse_tokenize(body_of(request));
  const auto tokens = tokenizer_.encode(r.text, {.add_special_tokens = r.add_special_tokens});
  return {.body = to_text({{"tokens", tokens}, {"count", tokens.size()}})};
}

HttpReply Api::detokenize(const HttpRequest& request) const {
  auto limits = options_.limits;
  limits.vocabulary = tokenizer_.vocab_size();
  const auto text = to_valid_utf8(tokenizer_.decode(parse_detokenize(body_of(request), limits)));
  return {.body = to_text({{"prompt", text}, {"content", text}})};
}

Tier Api::tier_of(const std::string& model, bool run) {
  const auto unknown = [&](const std::string& why) {
    return HttpError(404, why + "; GET /v1/models lists what there is", "model", "model_not_found");
  };
  if (model.empty()) return default_tier_;
  const auto [name, wanted] = split_model_name(model);
  if (name != options_.name) throw unknown(fmt::format("there is no model {}", in_quotes(model)));
  if (wanted.empty()) return default_tier_;
  Tier tier;
  try {
    tier = find_tier(options_.folder, engine_.config(), wanted);
  } catch (const Error& error) {
    throw unknown(error.what());
  }
  if (run) admit(tier.capacity);
  return tier;
}

void Api::admit(Capacity capacity) {
  const std::lock_guard lock(mutex_);
  if (std::ranges::find(capacities_, capacity) != capacities_.end()) return;
  if (capacities_.size() >= options_.max_capacities)
    throw HttpError(400, "this server already holds as many other capacities as it may; name a tier", "model",
                    "too_many_capacities");
  capacities_.push_back(capacity);
}

std::pair<Tier, std::string> Api::reduced(const std::string& model, const Tier& asked) const {
  if (!options_.latency || (!options_.reduce_named && !split_model_name(model).second.empty())) return {asked, ""};
  const double now = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  const auto decision = options_.latency->decide(now);
  const auto& tier = levels_[std::min(decision.level, levels_.size() - 1)];
  if (!below(tier, asked)) return {asked, ""};
  return {tier, decision.reason};
}

std::string Api::owner_of(const HttpRequest& request) const {
  return key_hashes_.empty() ? "" : sha256_of_text(request.authorization);
}

HttpReply Api::delete_state(const HttpRequest& request) {
  if (!options_.states) throw HttpError(404, "this server keeps no states", "", "states_not_allowed");
  options_.states->remove(request.path.substr(kState.size()), owner_of(request));
  return {.body = R"({"deleted":true})"};
}

std::shared_ptr<const SavedState> Api::find_state(const GenerationRequest& request, const std::string& owner,
                                                  Tier& tier) {
  if (request.state.empty() && !request.save_state) return nullptr;
  const char* const param = request.state.empty() ? "save_state" : "state";
  if (!options_.states)
    throw HttpError(400, "this server keeps no states; its operator allows them with --allow-states", param,
                    "states_not_allowed");
  if (request.save_state && options_.states->full())
    throw HttpError(429, "the states of this server have used up their quota; delete some", "save_state",
                    "state_quota_exceeded");
  if (request.state.empty()) return nullptr;
  auto saved = std::make_shared<SavedState>(options_.states->load(request.state, owner));
  if (!split_model_name(request.model).second.empty() && tier.capacity != saved->tier.capacity)
    throw HttpError(409, "the state is of another tier; name that one or none", "state", "state_of_other_tier");
  tier = saved->tier;
  admit(tier.capacity);
  return saved;
}

EncodedPrompt Api::encode(const Prompt& prompt, bool add_special_tokens) const {
  EncodedPrompt encoded;
  if (const auto* text = std::get_if<std::string>(&prompt)) {
    encoded.text = *text;
    encoded.from_text = true;
    encoded.tokens = tokenizer_.encode(*text, {.add_special_tokens = add_special_tokens});
    if (encoded.tokens.empty()) encoded.tokens = {static_cast<TokenId>(engine_.config().bos_token_id)};
  } else {
    encoded.tokens = std::get<std::vector<TokenId>>(prompt);
    StreamDecoder decoder(tokenizer_);
    for (const auto token : encoded.tokens) {
      if (token < tokenizer_.vocab_size()) encoded.text += decoder.add(token);
    }
    encoded.text += decoder.flush();
  }
  return encoded;
}

std::vector<EncodedPrompt> Api::encode(const GenerationRequest& request) const {
  std::vector<EncodedPrompt> prompts;
  if (request.chat) prompts.push_back({.tokens = encode_chat(options_.chat, request.messages, tokenizer_)});
  for (const auto& prompt : request.prompts) prompts.push_back(encode(prompt, request.add_special_tokens));
  const char* const param = request.chat ? "messages" : "prompt";
  for (const auto& prompt : prompts) {
    if (std::ssize(prompt.tokens) > options_.limits.prompt_tokens) {
      throw HttpError(
          400,
          fmt::format("{} has {} tokens, the limit is {}", param, prompt.tokens.size(), options_.limits.prompt_tokens),
          param, "prompt_too_long");
    }
    engine_.model().check_tokens(prompt.tokens, param);
  }
  return prompts;
}

void Api::generate(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
  if (scheduler_.draining())
    throw HttpError(503, "the server is shutting down; send the request again", "", "shutting_down");
  const bool chat = request.path == "/v1/chat/completions";
  auto r = chat ? parse_chat(body_of(request), options_.limits) : parse_completion(body_of(request), options_.limits);
  auto asked = tier_of(r.model);
  const auto saved = find_state(r, owner_of(request), asked);
  const auto [tier, reason] = saved ? std::pair(asked, std::string()) : reduced(r.model, asked);
  if (!r.seeded) r.sampling.seed = saved ? saved->sampler.seed : random_number();
  if (chat) r.stops.emplace_back(end_of_turn(options_.chat));
  // Separate keys have separate caches, so that response times do not reveal another client's prompts.
  if (!key_hashes_.empty()) r.cache_salt = fmt::format("{}\n{}", r.cache_salt, sha256_of_text(request.authorization));
  auto prompts = encode(r);
  if (saved) {
    // Alone, an empty prompt is encoded as a beginning of text; after a state it is empty.
    if (!chat && r.prompts[0] == Prompt(std::string())) prompts[0].tokens.clear();
    prompts[0].tokens.insert(prompts[0].tokens.begin(), saved->pending.begin(), saved->pending.end());
    if (prompts[0].tokens.empty()) throw HttpError(400, "prompt: nothing follows the state", "prompt", "invalid_value");
  }
  ReplyHead head{.id = fmt::format("{}-{:016x}", chat ? "chatcmpl" : "cmpl", random_number()),
                 .model = options_.name + "@" + tier.name,
                 .fingerprint = fmt::format("essh-{}-{}", hash_.substr(0, 12), tier.name),
                 .created = std::time(nullptr),
                 .asked_tier = asked.name,
                 .reason = reason};
  // Clients choose the names of other capacities: one label for all of them bounds the size of the metrics.
  const bool named = std::ranges::any_of(tiers_, [&](const Tier& one) { return one.name == tier.name; });
  const auto completion = std::make_shared<Completion>(
      std::move(r), std::move(prompts), std::move(head), tokenizer_, exchange,
      [this, path = request.path, label = named || tier.name == "full" ? tier.name : std::string("other")](int status) {
        metrics_.answered(path, status, label);
      });
  if (options_.states) completion->keep_in(*options_.states, owner_of(request));
  auto job = completion->job(tier, completion);
  job.from = saved;
  scheduler_.submit(std::move(job));
}

}  // namespace essh::serve
