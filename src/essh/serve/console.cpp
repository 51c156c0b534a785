#include "essh/serve/console.h"

#include <array>

#include "essh/base/error.h"
#include "essh/base/json.h"
#include "essh/base/sha256.h"
#include "essh/model/cost.h"
#include "essh/serve/console_texts.h"

namespace essh::serve {
namespace {

struct ConsoleFile {
  std::string_view path, type, text;
};
constexpr std::array<ConsoleFile, 4> kFiles = {{{"/", "text/html; charset=utf-8", kConsoleHtml},
                                                {"/console.css", "text/css; charset=utf-8", kConsoleCss},
                                                {"/console.js", "text/javascript; charset=utf-8", kConsoleJs},
                                                {"/console.svg", "image/svg+xml", kConsoleSvg}}};

// Only these files can run, so text of a model cannot become a script even through an error in console.js.
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

const ConsoleFile* find_file(std::string_view path) {
  for (const auto& file : kFiles) {
    if (file.path == path) return &file;
  }
  return nullptr;
}

// One tag for all files, so that a page never runs with a script of another version.
const std::string& entity_tag() {
  static const std::string tag = [] {
    std::string all;
    for (const auto& file : kFiles) all += file.text;
    return "\"" + sha256_of_text(all).substr(0, 16) + "\"";
  }();
  return tag;
}

// Members that come only from measurements.
constexpr std::array<const char*, 7> kMeasured = {"nll",       "nll_difference", "perplexity",    "bits_per_byte",
                                                  "decode_ms", "weight_bytes",   "resident_bytes"};

void add_measurements(Json& document, const std::string& hash, const Json& file, const std::string& place) {
  if (!file.is_object() || !file.contains("points") || !file["points"].is_array())
    fail(ErrorKind::BadFile, "{}: is no frontier; write one with `essh frontier MODEL --json`", place);
  for (const auto& point : file["points"]) {
    if (!point.is_object() || point.value("model_hash", Json()) != hash) continue;
    for (auto& known : document["points"]) {
      if (point.value("tier", Json()) != known["tier"]) continue;
      for (const auto* name : kMeasured) {
        if (point.contains(name) && point[name].is_number()) known[name] = point[name];
      }
      document["measured"] = true;
      if (known.contains("perplexity")) document["quality"] = true;
    }
  }
  if (!document["measured"].get<bool>()) {
    document["note"] = "the measured frontier is of another model; measure this one with `essh frontier`";
    return;
  }
  for (const auto* name : {"data", "context", "tokens", "depth", "threads", "processor"}) {
    if (file.contains(name) && (file[name].is_number() || file[name].is_string())) document[name] = file[name];
  }
  document["note"] =
      document["quality"].get<bool>() ? "" : "quality was not measured; `essh frontier MODEL --data TEXT` measures it";
}

}  // namespace

bool is_console(std::string_view path) {
  return find_file(path) != nullptr;
}

HttpReply console_reply(const HttpRequest& request) {
  const auto* file = find_file(request.path);
  HttpReply reply{.content_type = std::string(file->type),
                  .headers = {{"Content-Security-Policy", kPolicy}, {"Cache-Control", "no-cache"}}};
  reply.headers.emplace_back("ETag", entity_tag());
  if (request.if_none_match.find(entity_tag()) != std::string::npos)
    reply.status = 304;
  else
    reply.body = file->text;
  return reply;
}

Json describe_cost(const ModelConfig& config, const Capacity& capacity) {
  const auto cost = cost_of(config, capacity);
  const auto full = cost_of(config, full_capacity(config)).parameters;
  return {{"parameters", cost.parameters},
          {"parameter_fraction", static_cast<double>(cost.parameters) / static_cast<double>(full)},
          {"state_bytes", cost.state_bytes},
          {"kv_bytes", cost.kv_bytes},
          {"flops_per_token", cost.flops_per_token}};
}

Json frontier_document(const ModelConfig& config, const std::string& hash, const std::filesystem::path& path) {
  Json document = {{"object", "essh.frontier"},
                   {"measured", false},
                   {"quality", false},
                   {"note", "not measured; `essh frontier RUN --data TEXT` measures quality and speed"},
                   {"points", Json::array()}};
  for (const auto& tier : tiers_of(config)) {
    auto point = describe_cost(config, tier.capacity);
    point["tier"] = tier.name;
    if (tier.budget > 0) point["xi"] = tier.budget;
    document["points"].push_back(std::move(point));
  }
  if (!path.empty()) add_measurements(document, hash, read_json(path), path.string());
  return document;
}

}  // namespace essh::serve
