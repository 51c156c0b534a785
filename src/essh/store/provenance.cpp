#include "essh/store/provenance.h"

#include <charconv>
#include <cmath>

#include "essh/base/error.h"
#include "essh/base/json.h"
#include "essh/base/utf8.h"

namespace essh {

Provenance read_provenance(const std::filesystem::path& folder) {
  const auto path = folder / "essh.json";
  if (!std::filesystem::exists(path)) return {};
  const auto json = read_json(path, {.bytes = 8u << 20});
  const auto text = [&](const char* key) {
    return json.is_object() && json.contains(key) && json[key].is_string() ? json[key].get<std::string>()
                                                                           : std::string();
  };
  Provenance result{.kind = text("kind"), .parent = text("parent"), .tier = text("tier")};
  if (json.is_object() && json.contains("xi") && json["xi"].is_number()) result.xi = json["xi"].get<double>();
  if (json.is_object() && json.contains("full_parameters") && json["full_parameters"].is_number_unsigned())
    result.full_parameters = json["full_parameters"].get<Index>();
  return result;
}

Tier find_tier(const std::filesystem::path& folder, const ModelConfig& config, const std::string& name) {
  if (config.elastic.is_family()) return find_tier(config, name);
  const auto origin = read_provenance(folder);
  if (!origin.tier.empty() && name == origin.tier) return {name, origin.xi, full_capacity(config)};
  if (!name.starts_with("xi=")) {
    try {
      return find_tier(config, name);
    } catch (const Error& error) {
      if (origin.tier.empty()) throw;
      fail(error.kind(), "{}: an export of tier {} alone, not of {}; run its family for other tiers", folder.string(),
           in_quotes(origin.tier), in_quotes(name));
    }
  }
  double budget = 0;
  const auto [rest, status] = std::from_chars(name.data() + 3, name.data() + name.size(), budget);
  const bool number = status == std::errc{} && rest == name.data() + name.size();
  if (number && std::abs(budget - origin.xi) <= 1e-9) return {name, budget, full_capacity(config)};
  fail(ErrorKind::Usage, "{}: a model of fixed capacity{}, not a family: there is no tier {}; use full",
       folder.string(), origin.xi > 0 ? fmt::format(" (xi={})", origin.xi) : "", in_quotes(name));
}

}  // namespace essh
