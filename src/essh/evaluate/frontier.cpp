#include "essh/evaluate/frontier.h"

#include <algorithm>
#include <set>

#include "essh/base/progress.h"
#include "essh/base/units.h"
#include "essh/config/fields.h"
#include "essh/model/cost.h"
#include "essh/model/slice.h"

namespace essh {
namespace {

constexpr std::size_t kMostPoints = 10'000;

Index file_bytes(const ModelConfig& config, Capacity capacity) {
  const auto format = matrix_format(config);
  Index bytes = 0;
  for (const auto& tensor : tensor_list(slice(config, capacity))) {
    if (const auto own = format.quantisation ? tensor_quantisation(tensor, *format.quantisation) : std::nullopt)
      bytes += tensor.rows * (code_bytes(*own, tensor.cols) + 2 * scale_count(tensor.cols));
    else
      bytes += tensor.rows * tensor.cols * static_cast<Index>(dtype_size(stored_dtype(tensor, format.dtype)));
  }
  return bytes;
}

bool dominates(const FrontierPoint& a, const FrontierPoint& b) {
  const bool no_worse =
      a.perplexity <= b.perplexity && a.parameters <= b.parameters && a.latency.decode_ms <= b.latency.decode_ms;
  return no_worse &&
         (a.perplexity < b.perplexity || a.parameters < b.parameters || a.latency.decode_ms < b.latency.decode_ms);
}

std::string folder_name(const std::string& model) {
  const auto path = std::filesystem::path(model).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

struct CsvRow {
  std::string names, values;

  template <class T>
  void operator()(const char* name, T& member, const Field&) {
    const auto* comma = names.empty() ? "" : ",";
    names += fmt::format("{}{}", comma, name);
    if constexpr (std::same_as<T, std::string>) {
      std::string quoted;
      for (const char c : member) quoted += c == '"' ? "\"\"" : std::string(1, c);
      values += fmt::format("{}\"{}\"", comma, quoted);
    } else if constexpr (std::same_as<T, std::optional<double>>) {
      values += comma;
      if (member) values += fmt::format("{:.6g}", *member);
    } else if constexpr (std::floating_point<T>) {
      values += comma;
      if (member != 0) values += fmt::format("{:.6g}", member);
    } else {
      values += fmt::format("{}{}", comma, member);
    }
  }
};

// A column of the table: right-aligned, as wide as its widest cell.
struct Column {
  std::string title;
  std::vector<std::string> cells;
};

std::string join_columns(const std::vector<Column>& columns) {
  std::string out;
  const auto rows = columns.front().cells.size();
  for (std::size_t row = 0; row <= rows; ++row) {
    std::string line;
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const auto& column = columns[c];
      std::size_t width = column.title.size();
      for (const auto& cell : column.cells) width = std::max(width, cell.size());
      const auto& cell = row == 0 ? column.title : column.cells[row - 1];
      // The first column holds names, the last remarks.
      if (c == 0 || c + 1 == columns.size())
        line += fmt::format("{}{:<{}}", c == 0 ? "" : "  ", cell, width);
      else
        line += fmt::format("  {:>{}}", cell, width);
    }
    line.resize(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

std::string bytes_cell(auto bytes) {
  return bytes > 0 ? format_bytes(static_cast<double>(bytes)) : "-";
}

}  // namespace

bool Frontier::several_models() const {
  return std::ranges::any_of(points, [&](const FrontierPoint& p) { return p.model != points.front().model; });
}

std::vector<std::string> Frontier::quality_columns() const {
  std::set<std::string> names;
  for (const auto& point : points) {
    for (const auto& [name, _] : point.quality) names.insert(name);
  }
  return {names.begin(), names.end()};
}

std::string Frontier::label(const FrontierPoint& point) const {
  if (!several_models()) return point.tier;
  return point.tier == "full" ? folder_name(point.model) : folder_name(point.model) + " " + point.tier;
}

std::vector<FrontierPoint> measure_costs(const StoredModel& stored, const std::string& model, const Family& family,
                                         const std::vector<Tier>& tiers, Stream& stream, EngineOptions engine,
                                         const LatencyOptions& options, const LatencyProgress& progress) {
  std::optional<Progress> line;
  if (!progress)
    line.emplace("time", static_cast<double>(tiers.size() * static_cast<std::size_t>(options.rounds)), "tiers");
  double begun = 0;
  const auto latencies = measure_latencies(stored, tiers, stream, engine, options, [&](int round, const Tier& tier) {
    if (progress)
      progress(round, tier);
    else
      line->update(begun++, tier.name);
  });
  if (line) line->finish();
  std::vector<FrontierPoint> points;
  for (std::size_t i = 0; i < tiers.size(); ++i) {
    const auto& tier = tiers[i];
    const auto cost = cost_of(stored.config(), tier.capacity);
    points.push_back({.model = model,
                      .tier = tier.name,
                      .channels = tier.capacity.channels,
                      .ffn = tier.capacity.ffn,
                      .parameters = cost.parameters,
                      .parameter_fraction = family.full_parameters > 0 ? static_cast<double>(cost.parameters) /
                                                                             static_cast<double>(family.full_parameters)
                                                                       : 0,
                      .file_bytes = file_bytes(stored.config(), tier.capacity),
                      .state_bytes = cost.state_bytes,
                      .kv_bytes = cost.kv_bytes,
                      .latency = latencies[i],
                      .model_hash = stored.hash(),
                      .family_hash = family.hash});
  }
  return points;
}

void add_quality(std::span<FrontierPoint> points, const PerplexityReport& report) {
  ESSH_ASSERT(points.size() == report.tiers.size());
  for (std::size_t i = 0; i < points.size(); ++i) {
    points[i].nll = report.tiers[i].nll;
    points[i].perplexity = report.tiers[i].perplexity;
    points[i].bits_per_byte = report.tiers[i].bits_per_byte;
  }
}

std::size_t add_quality(Frontier& frontier, const std::vector<QualityFigure>& figures) {
  std::size_t used = 0;
  for (const auto& figure : figures) {
    for (auto& point : frontier.points) {
      if (point.tier != figure.tier || point.model_hash != figure.model_hash) continue;
      point.quality[figure.name] = figure.value;
      ++used;
    }
  }
  return used;
}

void compare_with_full(Frontier& frontier) {
  for (auto& point : frontier.points) {
    point.nll_difference.reset();
    if (point.perplexity == 0 || point.family_hash.empty()) continue;
    const auto full = std::ranges::find_if(frontier.points, [&](const FrontierPoint& other) {
      return other.family_hash == point.family_hash && other.parameter_fraction == 1 && other.perplexity > 0;
    });
    if (full != frontier.points.end()) point.nll_difference = point.nll - full->nll;
  }
}

void mark_dominated(Frontier& frontier) {
  for (auto& point : frontier.points) {
    point.dominated_by.clear();
    if (point.perplexity == 0) continue;
    const auto found = std::ranges::find_if(
        frontier.points, [&](const FrontierPoint& other) { return other.perplexity > 0 && dominates(other, point); });
    if (found != frontier.points.end()) point.dominated_by = frontier.label(*found);
  }
}

std::string to_table(const Frontier& frontier) {
  const bool quality = !frontier.data.empty();
  std::vector<Column> columns = {
      {"tier", {}},      {"parameters", {}},    {"r", {}},          {"file", {}},      {"state", {}},
      {"window KV", {}}, {"d nll", {}},         {"perplexity", {}}, {"bits/byte", {}}, {"ms/token", {}},
      {"10-90%", {}},    {"prefill tok/s", {}}, {"memory", {}},     {"", {}}};
  for (const auto& p : frontier.points) {
    const std::string cells[] = {
        frontier.label(p),
        fmt::format("{}", p.parameters),
        p.parameter_fraction > 0 ? fmt::format("{:.3f}", p.parameter_fraction) : "-",
        bytes_cell(p.file_bytes),
        bytes_cell(p.state_bytes),
        bytes_cell(p.kv_bytes),
        p.nll_difference ? fmt::format("{:+.4f}", *p.nll_difference) : "-",
        p.perplexity > 0 ? fmt::format("{:.3f}", p.perplexity) : "-",
        p.bits_per_byte > 0 ? fmt::format("{:.4f}", p.bits_per_byte) : "-",
        fmt::format("{:.3f}", p.latency.decode_ms),
        fmt::format("{:.3f}-{:.3f}", p.latency.decode_ms_low, p.latency.decode_ms_high),
        fmt::format("{:.0f}", p.latency.prefill_rate),
        bytes_cell(p.latency.resident_bytes),
        p.dominated_by.empty() ? "" : "dominated by " + p.dominated_by,
    };
    for (std::size_t c = 0; c < columns.size(); ++c) columns[c].cells.push_back(cells[c]);
  }
  if (!quality)
    std::erase_if(columns, [](const Column& c) {
      return c.title == "d nll" || c.title == "perplexity" || c.title == "bits/byte";
    });
  for (const auto& name : frontier.quality_columns()) {
    Column column{name, {}};
    for (const auto& point : frontier.points) {
      const auto found = point.quality.find(name);
      column.cells.push_back(found == point.quality.end() ? "-" : fmt::format("{:.4f}", found->second));
    }
    columns.insert(columns.end() - 1, std::move(column));
  }
  return join_columns(columns);
}

std::string to_csv(const Frontier& frontier) {
  std::string out;
  for (auto point : frontier.points) {
    CsvRow row;
    fields(row, point);
    for (const auto& name : frontier.quality_columns()) {
      const auto found = point.quality.find(name);
      row.names += fmt::format(",\"{}\"", name);
      row.values += found == point.quality.end() ? "," : fmt::format(",{:.6g}", found->second);
    }
    if (out.empty()) out = row.names + "\n";
    out += row.values + "\n";
  }
  return out;
}

Json to_json(const Frontier& frontier) {
  Json json = write_fields(frontier);
  json["points"] = Json::array();
  for (const auto& point : frontier.points) {
    Json object = write_fields(point);
    if (point.perplexity == 0) object.erase("nll"), object.erase("perplexity");
    if (!point.nll_difference) object.erase("nll_difference");
    if (point.parameter_fraction == 0) object.erase("parameter_fraction");
    if (point.bits_per_byte == 0) object.erase("bits_per_byte");
    if (point.latency.resident_bytes == 0) object.erase("resident_bytes");
    if (point.dominated_by.empty()) object.erase("dominated_by");
    for (const auto& [name, value] : point.quality) object["quality"][name] = value;
    json["points"].push_back(std::move(object));
  }
  return json;
}

Frontier frontier_from_json(const Json& json, const std::string& place) {
  Frontier frontier;
  read_fields(frontier, json, place, UnknownKeys::Ignore);
  const auto points = json.find("points");
  if (points == json.end() || !points->is_array() || points->empty() || points->size() > kMostPoints)
    fail(ErrorKind::BadFile, "{}: \"points\" must be a list of 1 to {}; run essh frontier again", place, kMostPoints);
  for (std::size_t i = 0; i < points->size(); ++i) {
    auto object = (*points)[i];
    auto& point = frontier.points.emplace_back();
    const auto here = fmt::format("{}: points[{}]", place, i);
    if (object.is_object() && object.contains("quality")) {
      const auto quality = object["quality"];
      if (!quality.is_object()) fail(ErrorKind::BadFile, "{}: quality must have names and numbers", here);
      for (const auto& [name, value] : quality.items()) {
        if (!value.is_number()) fail(ErrorKind::BadFile, "{}: quality {} must be a number", here, name);
        point.quality[name] = value.get<double>();
      }
      object.erase("quality");
    }
    read_fields(point, object, here);
  }
  return frontier;
}

plot::Figure draw(const Frontier& frontier) {
  const bool quality = !frontier.data.empty();
  const plot::Axis parameters{.title = "million parameters", .scale = plot::Scale::Log};
  const plot::Axis time{.title = fmt::format("ms per token, decoding at depth {}", frontier.depth)};
  const plot::Axis perplexity{.title = "perplexity", .scale = plot::Scale::Log};
  plot::Panel left{.title = quality ? "Quality against size" : "Time against size",
                   .x = parameters,
                   .y = quality ? perplexity : time};
  plot::Panel right{.title = quality ? "Quality against time" : "Memory against size",
                    .x = quality ? time : parameters,
                    .y = quality ? perplexity : plot::Axis{.title = "resident memory (MB)"}};
  // A family is one line through its tiers; exports of single capacities are one line together.
  const auto same_model = [](const FrontierPoint& a, const FrontierPoint& b) { return a.model == b.model; };
  const bool families =
      frontier.several_models() && std::ranges::adjacent_find(frontier.points, same_model) != frontier.points.end();
  const auto add = [&](plot::Panel& panel, const FrontierPoint& point, double x, double y) {
    const auto name = families ? folder_name(point.model) : std::string();
    if (panel.series.empty() || panel.series.back().name != name)
      panel.series.push_back({.name = name, .mark = plot::Mark::LineAndPoints});
    auto& series = panel.series.back();
    series.x.push_back(x);
    series.y.push_back(y);
    series.labels.push_back((families ? point.tier : frontier.label(point)) +
                            (point.dominated_by.empty() ? "" : " (dominated)"));
  };
  for (const auto& point : frontier.points) {
    const double size = 1e-6 * static_cast<double>(point.parameters);
    if (quality) {
      add(left, point, size, point.perplexity);
      add(right, point, point.latency.decode_ms, point.perplexity);
    } else {
      add(left, point, size, point.latency.decode_ms);
      add(right, point, size, 1e-6 * static_cast<double>(point.latency.resident_bytes));
    }
  }
  plot::Figure figure{.panels = {std::move(left), std::move(right)}};
  for (const auto& name : frontier.quality_columns()) {
    plot::Panel panel{.title = name + " against size", .x = parameters, .y = {.title = name}};
    for (const auto& point : frontier.points) {
      const auto found = point.quality.find(name);
      if (found != point.quality.end()) add(panel, point, 1e-6 * static_cast<double>(point.parameters), found->second);
    }
    figure.panels.push_back(std::move(panel));
  }
  return figure;
}

}  // namespace essh
