#include "essh/evaluate/quality.h"

#include <fmt/format.h>

#include "essh/base/error.h"
#include "essh/base/json.h"

namespace essh {
namespace {

std::string text_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

class Reader {
 public:
  Reader(const Json& document, const std::string& place, std::vector<QualityFigure>& figures)
      : place_(place), figures_(figures) {
    if (!document.is_object() || !document.contains("provenance") || !document["provenance"].is_object()) refuse();
    hash_ = text_of(document["provenance"], "model_hash");
    const auto protocol = text_of(document, "protocol");
    if (document.contains("tasks")) {
      for (const auto& task : list(document, "tasks"))
        take(list(task, "results"), text_of(task, "task"), text_of(task, "main").c_str());
      take(list(document, "means"), "mean of tasks", "mean");
    } else if (protocol.starts_with("niah")) {
      take(list(document, "results"), "niah", "full_key", true);
    } else if (protocol.starts_with("length")) {
      take(list(document, "results"), "perplexity", "perplexity", true);
    } else if (protocol == "dna") {
      take(list(document, "results"), "bits/base", "bits_per_base");
    } else if (protocol == "classification") {
      take(list(document, "results"), text_of(document, "set"), "accuracy");
    } else if (!text_of(document, "task").empty()) {
      const auto pairs = document.contains("pairs") ? fmt::format(", {} pairs", to_text(document["pairs"])) : "";
      take(list(document, "results"),
           fmt::format("{} {}{}", text_of(document, "task"), to_text(document["length"]), pairs), "accuracy");
    } else if (protocol == "validation" || protocol == "cross-domain" || protocol == "stateful") {
      const auto domain = text_of(document, "domain");
      take(list(document, "results"), domain.empty() ? protocol + " perplexity" : domain, "perplexity");
    } else {
      refuse();
    }
  }

 private:
  [[noreturn]] void refuse() const {
    fail(ErrorKind::BadFile,
         "{}: not a result with figures by tier; give what `essh evaluate ppl|length|niah|tasks|recall|dna --json` "
         "printed",
         place_);
  }
  const Json& list(const Json& object, const char* key) const {
    const auto found = object.find(key);
    if (found == object.end() || !found->is_array()) refuse();
    return *found;
  }
  void take(const Json& results, const std::string& name, const char* key, bool by_length = false) {
    for (const auto& result : results) {
      const auto value = result.find(key);
      if (value == result.end() || !value->is_number()) refuse();
      figures_.push_back({.name = by_length ? fmt::format("{} {}", name, to_text(result["length"])) : name,
                          .tier = text_of(result, "tier"),
                          .model_hash = hash_,
                          .value = value->get<double>()});
    }
  }

  const std::string& place_;
  std::vector<QualityFigure>& figures_;
  std::string hash_;
};

}  // namespace

std::vector<QualityFigure> quality_figures(const Json& document, const std::string& place) {
  std::vector<QualityFigure> figures;
  if (document.is_array()) {
    for (const auto& one : document) Reader(one, place, figures);
  } else {
    Reader(document, place, figures);
  }
  return figures;
}

}  // namespace essh
