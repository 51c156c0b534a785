#include "essh/evaluate/metrics.h"

#include <charconv>

#include "essh/base/utf8.h"
#include "essh/config/fields.h"
#include "essh/data/line_reader.h"

namespace essh {
namespace {

double parse_budget(const std::string& text, const std::string& place) {
  double budget = 0;
  const auto [stop, status] = std::from_chars(text.data(), text.data() + text.size(), budget);
  if (status != std::errc{} || stop != text.data() + text.size())
    fail(ErrorKind::BadFile, "{}: shares: {} is no budget", place, in_quotes(text));
  return budget;
}

const Json& object_at(const Json& json, const char* key, const std::string& place) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_object()) fail(ErrorKind::BadFile, "{}: {} must be an object", place, key);
  return *found;
}

StepMetrics read_step(Json json, const std::string& place) {
  StepMetrics step;
  if (json.contains("shares")) {
    for (const auto& [budget, count] : object_at(json, "shares", place).items()) {
      step.shares[parse_budget(budget, place)] =
          detail::json_value<std::int64_t>(count, {.min = 0}, fmt::format("{}: shares", place));
    }
  }
  for (auto value = json.begin(); value != json.end();) {
    if (value->is_null())
      value = json.erase(value);
    else
      ++value;
  }
  read_fields(step, json, place, UnknownKeys::Ignore);
  return step;
}

ValidationMetrics read_validation(const Json& json, const std::string& place) {
  ValidationMetrics validation;
  const auto count = [&](const char* key) {
    return json.contains(key)
               ? detail::json_value<std::int64_t>(json[key], {.min = 0}, fmt::format("{}: {}", place, key))
               : std::int64_t{0};
  };
  validation.step = count("step");
  validation.tokens = count("tokens");
  for (const auto& [tier, nll] : object_at(json, "tiers", place).items()) {
    const auto where = fmt::format("{}: tiers: {}", place, in_quotes(tier));
    validation.tiers.emplace_back(tier, nll.is_null() ? kNotMeasured : detail::json_value<double>(nll, {}, where));
  }
  return validation;
}

// Drops the lines of steps that a resumed run repeated.
template <class Record>
void append_record(std::vector<Record>& records, Record record) {
  while (!records.empty() && records.back().step >= record.step) records.pop_back();
  records.push_back(std::move(record));
}

}  // namespace

RunMetrics read_metrics(const std::filesystem::path& path) {
  RunMetrics metrics;
  const auto stream = open_byte_stream(path);
  LineReader lines(*stream, 0, 1);
  Line line;
  for (auto number = lines.number(); lines.next(line); number = lines.number()) {
    const auto place = fmt::format("{}: line {}", path.string(), number);
    const bool ended = line.bytes.ends_with('\n');
    if (!line.first || !line.last) fail(ErrorKind::BadFile, "{}: longer than {} bytes", place, LineReader::kWholeLine);
    if (line.bytes.find_first_not_of(" \t\r\n") == std::string_view::npos) continue;
    Json json;
    try {
      json = parse_json(line.bytes, place);
    } catch (const Error&) {
      if (ended) throw;
      metrics.torn = true;
      break;
    }
    if (!json.is_object()) fail(ErrorKind::BadFile, "{}: expected a JSON object", place);
    const auto kind = json.value("kind", Json());
    if (!kind.is_string()) fail(ErrorKind::BadFile, "{}: kind is missing", place);
    if (kind == "step") append_record(metrics.steps, read_step(std::move(json), place));
    if (kind == "validation") append_record(metrics.validations, read_validation(json, place));
  }
  return metrics;
}

}  // namespace essh
