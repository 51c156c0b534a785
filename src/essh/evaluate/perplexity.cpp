#include "essh/evaluate/perplexity.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "essh/base/progress.h"
#include "essh/config/fields.h"
#include "essh/model/cost.h"

namespace essh {
namespace {

// Tokens of one pass: full matrix products, little memory.
constexpr Index kPassTokens = 4096;

// Tokens from the beginning of one window to that of the next.
Index stride_of(const PerplexityOptions& options) {
  return options.context + (options.disjoint ? 1 : 0);
}

// Inputs and targets of consecutive windows, row by row.
struct Windows {
  std::vector<TokenId> inputs, targets;

  void read(const EvaluationText& text, Index first, Index count, const PerplexityOptions& options) {
    const auto stride = static_cast<std::size_t>(stride_of(options)),
               context = static_cast<std::size_t>(options.context), windows = static_cast<std::size_t>(count);
    std::vector<TokenId> stretch((windows - 1) * stride + context + 1);
    text.read(first * stride_of(options), stretch);
    inputs.clear();
    targets.clear();
    for (std::size_t w = 0; w < windows; ++w) {
      const auto window = std::span(stretch).subspan(w * stride, context + 1);
      inputs.insert(inputs.end(), window.begin(), window.end() - 1);
      targets.insert(targets.end(), window.begin() + 1, window.end());
    }
  }
};

// Sum of the losses of a batch of windows, each in a slot of its own.
double loss_of(Engine& engine, const Tier& tier, const Windows& windows, std::size_t context, Outputs& outputs) {
  std::vector<Chunk> chunks;
  for (std::size_t first = 0; first < windows.inputs.size(); first += context) {
    chunks.push_back({.slot = engine.open(tier),
                      .tokens = std::span(windows.inputs).subspan(first, context),
                      .wanted = Wanted::Scores,
                      .targets = std::span(windows.targets).subspan(first, context)});
  }
  engine.run(chunks, outputs);
  double sum = 0;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    for (const float one : outputs.entries[i].losses) sum += static_cast<double>(one);
    engine.close(chunks[i].slot);
  }
  return sum;
}

Index count_windows(const EvaluationText& text, const PerplexityOptions& options) {
  if (options.context < 1) fail(ErrorKind::Usage, "evaluate: the context must be at least 1, got {}", options.context);
  const Index available = std::max<Index>(text.tokens() - (options.disjoint ? 0 : 1), 0) / stride_of(options);
  if (available < 1) {
    fail(ErrorKind::Usage, "{}: {} tokens, one window takes {}; give more text or a smaller context", text.name(),
         text.tokens(), options.context + 1);
  }
  return options.windows > 0 ? std::min(options.windows, available) : available;
}

void compare_with_full(std::vector<TierPerplexity>& tiers, Index full_parameters) {
  if (full_parameters == 0) return;
  const auto full =
      std::ranges::find_if(tiers, [&](const TierPerplexity& tier) { return tier.parameters == full_parameters; });
  for (auto& tier : tiers) {
    tier.fraction = static_cast<double>(tier.parameters) / static_cast<double>(full_parameters);
    if (full != tiers.end()) tier.nll_difference = tier.nll - full->nll;
  }
}

}  // namespace

PerplexityReport measure_perplexity(Engine& engine, const EvaluationText& text, const PerplexityOptions& options) {
  PerplexityReport report{
      .context = options.context, .disjoint = options.disjoint, .windows = count_windows(text, options)};
  report.tokens = report.windows * options.context;
  report.left_out = text.tokens() - report.windows * stride_of(options) - (options.disjoint ? 0 : 1);
  const Index batch = options.batch > 0 ? options.batch : std::max<Index>(1, kPassTokens / options.context);

  std::vector<double> sums(options.tiers.size());
  Windows windows;
  Outputs outputs;
  Progress progress("evaluate", static_cast<double>(report.tokens) * static_cast<double>(sums.size()), "tok");
  double done = 0;
  for (Index first = 0; first < report.windows; first += batch) {
    const Index count = std::min(batch, report.windows - first);
    windows.read(text, first, count, options);
    engine.model().check_tokens(windows.inputs, text.name());
    engine.model().check_tokens(windows.targets, text.name());
    report.bytes += text.bytes(windows.targets);
    for (std::size_t t = 0; t < sums.size(); ++t) {
      sums[t] += loss_of(engine, options.tiers[t], windows, static_cast<std::size_t>(options.context), outputs);
      if (!std::isfinite(sums[t])) {
        fail(ErrorKind::BadFile, "{}: tier {} gives a loss that is not finite in windows {} to {}", text.name(),
             options.tiers[t].name, first, first + count - 1);
      }
      done += static_cast<double>(count * options.context);
      progress.update(done, options.tiers[t].name);
    }
  }
  progress.finish();

  for (std::size_t t = 0; t < sums.size(); ++t) {
    const double nll = sums[t] / static_cast<double>(report.tokens);
    report.tiers.push_back({.tier = options.tiers[t],
                            .parameters = cost_of(engine.config(), options.tiers[t].capacity).parameters,
                            .nll = nll,
                            .perplexity = std::exp(nll),
                            .bits_per_byte = report.bytes > 0 ? sums[t] / (std::numbers::ln2 * report.bytes) : 0});
  }
  compare_with_full(report.tiers, options.full_parameters);
  return report;
}

Json to_json(const PerplexityReport& report, const std::string& model, const ResultProvenance& provenance) {
  Json results = Json::array();
  for (const auto& tier : report.tiers) {
    results.push_back({{"tier", tier.tier.name},
                       {"parameters", tier.parameters},
                       {"parameter_fraction", tier.fraction > 0 ? Json(tier.fraction) : Json()},
                       {"tokens", report.tokens},
                       {"nll", tier.nll},
                       {"nll_difference", tier.nll_difference ? Json(*tier.nll_difference) : Json()},
                       {"perplexity", tier.perplexity},
                       {"bits_per_byte", report.bytes > 0 ? Json(tier.bits_per_byte) : Json()}});
  }
  return {{"model", model},
          {"protocol", report.disjoint ? "cross-domain" : "validation"},
          {"context", report.context},
          {"windows", report.windows},
          {"results", std::move(results)},
          {"provenance", write_fields(provenance)}};
}

}  // namespace essh
