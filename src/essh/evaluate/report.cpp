#include "essh/evaluate/report.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "essh/base/file.h"
#include "essh/base/json.h"
#include "essh/base/units.h"
#include "essh/plot/xml.h"
#include "essh/store/run_folder.h"

namespace essh {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kCurvePoints = 300;
constexpr std::size_t kSharePoints = 60;
constexpr std::size_t kPaletteSize = 8;
constexpr std::uint64_t kRecipeLimit = 1u << 20;

constexpr std::string_view kStyle = R"(
:root { color-scheme: light dark; --ink: #222; --muted: #666; --line: #ddd; --page: #f6f6f4; --card: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e4e2; --muted: #a0a09c; --line: #3a3a3a; --page: #171717; --card: #1f1f1f; }
  figure svg { filter: invert(0.88) hue-rotate(180deg); }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 28px 24px 48px; max-width: 1180px; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 26px; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 34px 0 12px; }
p { margin: 0 0 12px; color: var(--muted); }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(220px, 1fr)); gap: 12px; margin: 18px 0 0; }
.facts div, figure, .card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; }
.facts div { padding: 10px 14px; }
.facts dt { color: var(--muted); font-size: 13px; }
.facts dd { margin: 0; font-size: 19px; font-variant-numeric: tabular-nums; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr)); gap: 14px; }
figure { margin: 0; padding: 8px; overflow: hidden; }
figure svg { display: block; width: 100%; height: auto; }
.wide { grid-column: 1 / -1; }
.card { padding: 4px 14px; overflow-x: auto; }
.charts + .card { margin-top: 14px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 6px 10px; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--muted); font-weight: 600; font-size: 13px; }
th:first-child, td:first-child { text-align: left; }
tr:last-child td { border-bottom: 0; }
td.dominated { color: var(--muted); }
pre { margin: 8px 0; font: 13px/1.45 ui-monospace, "DejaVu Sans Mono", monospace; overflow-x: auto; }
)";

// One curve per name.
struct Curve {
  std::string name;
  double StepMetrics::*value;
};

// Means of neighbouring steps, at most kCurvePoints; NaN values are ignored.
plot::Series mean_curve(const std::vector<StepMetrics>& steps, const Curve& curve) {
  plot::Series series{.name = curve.name};
  const std::size_t width = (steps.size() + kCurvePoints - 1) / kCurvePoints;
  for (std::size_t first = 0; first < steps.size(); first += width) {
    double tokens = 0, sum = 0, count = 0;
    for (std::size_t i = first; i < std::min(first + width, steps.size()); ++i) {
      const double value = steps[i].*curve.value;
      if (!std::isfinite(value)) continue;
      tokens += static_cast<double>(steps[i].tokens);
      sum += value;
      ++count;
    }
    if (count == 0) continue;
    series.x.push_back(tokens / count);
    series.y.push_back(sum / count);
  }
  return series;
}

// A chart over tokens seen, in tokens, millions or billions.
std::string figure(plot::Panel panel) {
  double most = 0;
  for (const auto& series : panel.series)
    for (const double x : series.x) most = std::max(most, x);
  const auto [unit, name] = most >= 2e9   ? std::pair{1e9, "billion tokens"}
                            : most >= 2e6 ? std::pair{1e6, "million tokens"}
                                          : std::pair{1.0, "tokens"};
  panel.x.title = name;
  for (auto& series : panel.series)
    for (double& x : series.x) x /= unit;
  return fmt::format(
      "<figure>{}</figure>\n",
      plot::to_svg({.panels = {std::move(panel)}, .columns = 1, .panel_width = 560, .panel_height = 340}));
}

// Empty if no curve has a value.
std::string curves(const std::vector<StepMetrics>& steps, const std::string& title, plot::Axis y,
                   const std::vector<Curve>& list) {
  plot::Panel panel{.title = title, .y = std::move(y)};
  for (const auto& curve : list) {
    auto series = mean_curve(steps, curve);
    if (!series.x.empty()) panel.series.push_back(std::move(series));
  }
  if (panel.series.empty()) return {};
  if (panel.series.size() == 1) panel.series.front().name.clear();
  return figure(std::move(panel));
}

std::string validation_curves(const std::vector<ValidationMetrics>& validations) {
  plot::Panel panel{.title = "Validation loss of every tier", .y = {.title = "nats per token"}};
  for (const auto& validation : validations) {
    for (const auto& [tier, nll] : validation.tiers) {
      auto series = std::ranges::find(panel.series, tier, &plot::Series::name);
      if (series == panel.series.end()) {
        panel.series.push_back({.name = tier, .dashed = panel.series.size() >= kPaletteSize});
        series = panel.series.end() - 1;
      }
      series->x.push_back(static_cast<double>(validation.tokens));
      series->y.push_back(nll);
    }
  }
  return panel.series.empty() ? std::string() : figure(std::move(panel));
}

std::string share_curves(const std::vector<StepMetrics>& steps) {
  std::set<double, std::greater<>> budgets;  // the full capacity first
  for (const auto& step : steps)
    for (const auto& [budget, count] : step.shares) budgets.insert(budget);
  if (budgets.empty()) return {};
  plot::Panel panel{.title = "Share of micro-batches at each capacity", .y = {.title = "share", .min = 0}};
  const std::size_t width = (steps.size() + kSharePoints - 1) / kSharePoints;
  for (const double budget : budgets) {
    plot::Series series{.name = budget == 1 ? "full" : fmt::format("ξ={:.3g}", budget),
                        .dashed = panel.series.size() >= kPaletteSize};
    for (std::size_t first = 0; first < steps.size(); first += width) {
      double here = 0, all = 0;
      const std::size_t last = std::min(first + width, steps.size());
      for (std::size_t i = first; i < last; ++i) {
        for (const auto& [other, count] : steps[i].shares) {
          all += static_cast<double>(count);
          if (other == budget) here += static_cast<double>(count);
        }
      }
      if (all == 0) continue;
      series.x.push_back(0.5 *
                         (static_cast<double>(steps[first].tokens) + static_cast<double>(steps[last - 1].tokens)));
      series.y.push_back(here / all);
    }
    panel.series.push_back(std::move(series));
  }
  return figure(std::move(panel));
}

struct Table {
  std::string rows;

  void head(const std::vector<std::string>& cells) { row(cells, "th", {}); }
  void row(const std::vector<std::string>& cells, std::string_view tag = "td", std::string_view style = {}) {
    rows += "<tr>";
    for (const auto& cell : cells) rows += fmt::format("<{}{}>{}</{}>", tag, style, plot::escape_xml(cell), tag);
    rows += "</tr>\n";
  }
  std::string html() const { return fmt::format("<div class=\"card\"><table>\n{}</table></div>\n", rows); }
};

std::string number(double value, int digits) {
  return std::isfinite(value) ? fmt::format("{:.{}f}", value, digits) : "–";
}

std::string validation_table(const std::vector<ValidationMetrics>& validations) {
  if (validations.empty()) return {};
  const auto& last = validations.back();
  Table table;
  table.head({"tier", fmt::format("loss at step {}", last.step), "perplexity", "lowest loss", "at step"});
  for (const auto& [tier, nll] : last.tiers) {
    double lowest = std::numeric_limits<double>::infinity();
    std::int64_t at = last.step;
    for (const auto& validation : validations) {
      const auto found = std::ranges::find(validation.tiers, tier, &std::pair<std::string, double>::first);
      if (found == validation.tiers.end() || !(found->second < lowest)) continue;
      lowest = found->second;
      at = validation.step;
    }
    table.row({tier, number(nll, 4), number(std::exp(nll), 3), number(lowest, 4), fmt::format("{}", at)});
  }
  return table.html();
}

std::string frontier_section(const Frontier& frontier) {
  std::string out = "<h2>Frontier</h2>\n<p>";
  out += plot::escape_xml(
      fmt::format("{}, {} threads, decoding at depth {}", frontier.processor, frontier.threads, frontier.depth));
  if (!frontier.data.empty()) {
    out += plot::escape_xml(
        fmt::format("; perplexity of {} tokens of {}, context {}", frontier.tokens, frontier.data, frontier.context));
  }
  auto chart = draw(frontier);
  chart.panel_width = 560;
  out += fmt::format("</p>\n<div class=\"charts\"><figure class=\"wide\">{}</figure></div>\n", plot::to_svg(chart));
  Table table;
  std::vector<std::string> titles = {"tier",  "parameters", "r",         "file",     "state",         "window KV",
                                     "Δ nll", "perplexity", "bits/byte", "ms/token", "prefill tok/s", "memory",
                                     ""};
  const auto qualities = frontier.quality_columns();
  titles.insert(titles.end() - 1, qualities.begin(), qualities.end());
  table.head(titles);
  const auto bytes = [](auto count) { return count > 0 ? format_bytes(static_cast<double>(count)) : "–"; };
  const auto known = [](double value, int digits) { return number(value > 0 ? value : kNotMeasured, digits); };
  for (const auto& p : frontier.points) {
    std::vector<std::string> cells = {frontier.label(p),
                                      format_count(static_cast<double>(p.parameters)),
                                      known(p.parameter_fraction, 3),
                                      bytes(p.file_bytes),
                                      bytes(p.state_bytes),
                                      bytes(p.kv_bytes),
                                      number(p.nll_difference.value_or(kNotMeasured), 4),
                                      known(p.perplexity, 3),
                                      known(p.bits_per_byte, 4),
                                      known(p.latency.decode_ms, 3),
                                      known(p.latency.prefill_rate, 0),
                                      bytes(p.latency.resident_bytes),
                                      p.dominated_by.empty() ? "" : "dominated by " + p.dominated_by};
    for (const auto& name : qualities) {
      const auto found = p.quality.find(name);
      cells.insert(cells.end() - 1, number(found == p.quality.end() ? kNotMeasured : found->second, 4));
    }
    table.row(cells, "td", p.dominated_by.empty() ? "" : " class=\"dominated\"");
  }
  return out + table.html();
}

double median(const std::vector<StepMetrics>& steps, double StepMetrics::*value) {
  std::vector<double> values;
  for (const auto& step : steps)
    if (std::isfinite(step.*value)) values.push_back(step.*value);
  if (values.empty()) return kNotMeasured;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

// Total time of a run; the seconds of each session start at zero.
double total_seconds(const std::vector<StepMetrics>& steps) {
  double total = 0, before = 0;
  for (const auto& step : steps) {
    if (!std::isfinite(step.seconds)) continue;
    total += step.seconds >= before ? step.seconds - before : step.seconds;
    before = step.seconds;
  }
  return total;
}

std::string facts(const RunReport& report) {
  std::string out = "<dl class=\"facts\">\n";
  const auto add = [&](const std::string& name, const std::string& value) {
    out += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", plot::escape_xml(name), plot::escape_xml(value));
  };
  if (const auto& steps = report.metrics.steps; !steps.empty()) {
    const auto& last = steps.back();
    add("steps", fmt::format("{}", last.step));
    add("tokens", format_count(static_cast<double>(last.tokens)));
    add("time", format_duration(total_seconds(steps)));
    if (std::isfinite(last.full_loss)) add("last full loss", number(last.full_loss, 3));
    if (const double rate = median(steps, &StepMetrics::tokens_per_second); std::isfinite(rate))
      add("tokens/s (median)", format_count(rate));
    if (const double mfu = median(steps, &StepMetrics::mfu); std::isfinite(mfu))
      add("of the machine's peak", fmt::format("{:.0f}%", 100 * mfu));
  }
  const bool refined = report.refinement && !report.refinement->validations.empty();
  const auto& validations = refined ? report.refinement->validations : report.metrics.validations;
  if (!validations.empty() && !validations.back().tiers.empty()) {
    const auto& tiers = validations.back().tiers;
    const std::string stage = refined ? ", refined" : "";
    if (tiers.size() > 1)
      add(fmt::format("perplexity {}{}", tiers.front().first, stage), number(std::exp(tiers.front().second), 2));
    add(fmt::format("perplexity {}{}", tiers.back().first, stage), number(std::exp(tiers.back().second), 2));
  }
  return out + "</dl>\n";
}

std::string chart_grid(const std::string& charts) {
  return charts.empty() ? charts : fmt::format("<div class=\"charts\">\n{}</div>\n", charts);
}

// Loss curves and the tiers of one stage of training.
std::string loss_section(const RunMetrics& metrics, std::string_view title) {
  std::string out = fmt::format("<h2>{}</h2>\n", title);
  if (metrics.steps.empty() && metrics.validations.empty()) out += "<p>No step is recorded yet.</p>\n";
  if (metrics.torn) out += "<p>The last line of the metrics was cut off and is left out.</p>\n";
  if (const auto width = (metrics.steps.size() + kCurvePoints - 1) / kCurvePoints; width > 1)
    out += fmt::format("<p>Each point of a training curve is the mean of {} steps.</p>\n", width);
  return out +
         chart_grid(
             curves(metrics.steps, "Training loss", {.title = "nats per token"},
                    {{"full capacity", &StepMetrics::full_loss}, {"reduced capacities", &StepMetrics::reduced_loss}}) +
             validation_curves(metrics.validations)) +
         validation_table(metrics.validations);
}

std::string course_section(const std::vector<StepMetrics>& steps) {
  const auto charts =
      share_curves(steps) +
      curves(steps, "Divergence from the full capacity", {.title = "distillation loss"},
             {{"distillation", &StepMetrics::distillation}}) +
      curves(steps, "Learning rate", {.min = 0}, {{"lr", &StepMetrics::lr}}) +
      curves(steps, "Gradient norm", {.scale = plot::Scale::Log}, {{"norm", &StepMetrics::grad_norm}}) +
      curves(steps, "Throughput", {.title = "tokens per second", .min = 0},
             {{"tokens per second", &StepMetrics::tokens_per_second}}) +
      curves(steps, "Share of the machine's peak", {.min = 0, .max = 1}, {{"share", &StepMetrics::mfu}});
  return charts.empty() ? charts : "<h2>Course of pretraining</h2>\n" + chart_grid(charts);
}

}  // namespace

RunReport read_run(const fs::path& folder) {
  if (!fs::exists(folder / kPretrainingFiles.metrics))
    fail(ErrorKind::BadFile, "{}: no {}; give the folder of a run of essh train", folder.string(),
         kPretrainingFiles.metrics);
  const auto path = fs::absolute(folder).lexically_normal();
  RunReport report{.name = (path.has_filename() ? path : path.parent_path()).filename().string(),
                   .metrics = read_metrics(folder / kPretrainingFiles.metrics),
                   .recipe = {}};
  if (fs::exists(folder / kRefinementFiles.metrics))
    report.refinement = read_metrics(folder / kRefinementFiles.metrics);
  if (fs::exists(folder / kRunRecipe)) report.recipe = read_text(folder / kRunRecipe, kRecipeLimit);
  if (const auto frontier = folder / kRunFrontier; fs::exists(frontier))
    report.frontier = frontier_from_json(read_json(frontier), frontier.string());
  return report;
}

std::string to_html(const RunReport& report) {
  std::string out = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\">\n<title>{0}</title>\n<style>{1}</style>\n</head>\n<body>\n"
      "<h1>{0}</h1>\n",
      plot::escape_xml(report.name), kStyle);
  out += facts(report);
  if (report.frontier) out += frontier_section(*report.frontier);
  if (report.refinement) out += loss_section(*report.refinement, "Refinement");
  out += loss_section(report.metrics, "Pretraining");
  out += course_section(report.metrics.steps);
  if (!report.recipe.empty())
    out += fmt::format("<h2>Recipe</h2>\n<div class=\"card\"><pre>{}</pre></div>\n", plot::escape_xml(report.recipe));
  return out + "</body>\n</html>\n";
}

}  // namespace essh
