#include "essh/evaluate/length_sweep.h"

#include <algorithm>
#include <cmath>

#include "essh/base/json.h"
#include "essh/base/progress.h"
#include "essh/config/fields.h"
#include "essh/model/cost.h"

namespace essh {
namespace {

constexpr Index kSweepPassTokens = 8192;

// Sums of the losses of some windows, by the bin of their position.
std::vector<double> losses_of(Engine& engine, const Tier& tier, const std::vector<std::vector<TokenId>>& windows,
                              Index bins, Outputs& outputs) {
  std::vector<Chunk> chunks;
  for (const auto& window : windows) {
    chunks.push_back({.slot = engine.open(tier),
                      .tokens = std::span(window).first(window.size() - 1),
                      .wanted = Wanted::Scores,
                      .targets = std::span(window).subspan(1)});
  }
  engine.run(chunks, outputs);
  std::vector<double> sums(static_cast<std::size_t>(bins));
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const auto losses = outputs.entries[i].losses;
    for (Index b = 0; b < bins; ++b) {
      const auto begin = bin_begin(b, bins, std::ssize(losses)), end = bin_begin(b + 1, bins, std::ssize(losses));
      for (const float loss : losses.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)))
        sums[static_cast<std::size_t>(b)] += static_cast<double>(loss);
    }
    engine.close(chunks[i].slot);
  }
  return sums;
}

// Everything that the losses of a pass depend on, except tier and windows.
std::string journal_key(const Engine& engine, const EvaluationText& text) {
  return fmt::format("length {} precision {} data {}", engine.model().hash(), static_cast<int>(engine.precision()),
                     text.fingerprint());
}

Index count_windows(const EvaluationText& text, Index length, Index most) {
  const auto available = text.tokens() / (length + 1);
  if (available < 1) {
    fail(ErrorKind::Usage, "{}: {} tokens, a window of length {} takes {}; give more text or shorter lengths",
         text.name(), text.tokens(), length, length + 1);
  }
  return std::min(most, available);
}

}  // namespace

Index bin_begin(Index bin, Index bins, Index length) {
  return bin * length / bins;
}

LengthReport measure_lengths(Engine& engine, const EvaluationText& text, const LengthOptions& options) {
  LengthReport report{.options = options};
  double total = 0, done = 0;
  for (const auto length : options.lengths)
    total += static_cast<double>(length * count_windows(text, length, options.windows) *
                                 static_cast<Index>(options.tiers.size()));
  for (std::size_t t = 0; t < options.tiers.size(); ++t) {
    report.parameters.push_back(cost_of(engine.config(), options.tiers[t].capacity).parameters);
    for (const auto length : options.lengths)
      report.results.push_back({.tier = t, .length = length, .windows = count_windows(text, length, options.windows)});
  }
  const auto key = options.journal == nullptr ? "" : journal_key(engine, text);
  if (options.journal != nullptr) options.journal->announce(key);
  Progress progress("length", total, "tok");
  Outputs outputs;
  for (std::size_t l = 0; l < options.lengths.size(); ++l) {
    const auto length = options.lengths[l], windows = count_windows(text, length, options.windows);
    const auto bins = std::min(options.bins, length);
    std::vector<std::vector<double>> sums(options.tiers.size(), std::vector<double>(static_cast<std::size_t>(bins)));
    const auto batch = std::max<Index>(1, kSweepPassTokens / length);
    for (Index first = 0; first < windows; first += batch) {
      std::vector<std::vector<TokenId>> tokens;
      for (Index w = first; w < std::min(first + batch, windows); ++w) {
        text.read(w * (length + 1), tokens.emplace_back(static_cast<std::size_t>(length + 1)));
        engine.model().check_tokens(tokens.back(), text.name());
      }
      for (std::size_t t = 0; t < options.tiers.size(); ++t) {
        const auto& tier = options.tiers[t];
        const auto pass = kept_or_measured(
            options.journal,
            fmt::format("{} {} length {} bins {} windows {} to {}", key, sizes_of(engine.config(), tier.capacity),
                        length, bins, first, first + std::ssize(tokens)),
            static_cast<std::size_t>(bins), [&] {
              auto found = losses_of(engine, tier, tokens, bins, outputs);
              if (!std::ranges::all_of(found, [](double loss) { return std::isfinite(loss); })) {
                fail(ErrorKind::BadFile, "{}: tier {} gives a loss that is not finite at length {}", text.name(),
                     tier.name, length);
              }
              return found;
            });
        for (std::size_t b = 0; b < pass.size(); ++b) sums[t][b] += pass[b];
        progress.update(done += static_cast<double>(length * std::ssize(tokens)), tier.name);
      }
    }
    for (std::size_t t = 0; t < options.tiers.size(); ++t) {
      auto& result = report.results[t * options.lengths.size() + l];
      double sum = 0;
      for (Index b = 0; b < bins; ++b) {
        const auto loss = sums[t][static_cast<std::size_t>(b)];
        sum += loss;
        const auto positions = bin_begin(b + 1, bins, length) - bin_begin(b, bins, length);
        result.curve.push_back(loss / static_cast<double>(positions * windows));
      }
      result.nll = sum / static_cast<double>(length * windows);
      result.perplexity = std::exp(result.nll);
    }
  }
  progress.finish();
  return report;
}

Json to_json(const LengthReport& report, const std::string& model, const ResultProvenance& provenance) {
  Json results = Json::array();
  for (const auto& result : report.results) {
    Json curve = Json::array();
    const auto bins = static_cast<Index>(result.curve.size());
    for (Index b = 0; b < bins; ++b) {
      curve.push_back({{"begin", bin_begin(b, bins, result.length)},
                       {"end", bin_begin(b + 1, bins, result.length)},
                       {"nll", result.curve[static_cast<std::size_t>(b)]}});
    }
    results.push_back({{"tier", report.options.tiers[result.tier].name},
                       {"parameters", report.parameters[result.tier]},
                       {"length", result.length},
                       {"windows", result.windows},
                       {"nll", result.nll},
                       {"perplexity", result.perplexity},
                       {"positions", std::move(curve)}});
  }
  return {{"model", model},
          {"protocol", "length sweep, disjoint windows"},
          {"results", std::move(results)},
          {"provenance", write_fields(provenance)}};
}

plot::Figure draw(const LengthReport& report, const std::string& title) {
  plot::Panel lengths{.title = "perplexity by length",
                      .x = {.title = "tokens", .scale = plot::Scale::Log},
                      .y = {.title = "perplexity"}};
  plot::Panel positions{.title = "loss by position, longest length", .x = {.title = "position"}, .y = {.title = "nll"}};
  const auto longest = *std::ranges::max_element(report.options.lengths);
  for (std::size_t t = 0; t < report.options.tiers.size(); ++t) {
    plot::Series by_length{.name = report.options.tiers[t].name, .mark = plot::Mark::LineAndPoints};
    plot::Series by_position{.name = report.options.tiers[t].name};
    for (const auto& result : report.results) {
      if (result.tier != t) continue;
      by_length.x.push_back(static_cast<double>(result.length));
      by_length.y.push_back(result.perplexity);
      const auto bins = static_cast<Index>(result.curve.size());
      for (Index b = 0; result.length == longest && b < bins; ++b) {
        by_position.x.push_back(static_cast<double>(bin_begin(b, bins, longest) + bin_begin(b + 1, bins, longest)) / 2);
        by_position.y.push_back(result.curve[static_cast<std::size_t>(b)]);
      }
    }
    lengths.series.push_back(std::move(by_length));
    positions.series.push_back(std::move(by_position));
  }
  return {.title = title, .panels = {std::move(lengths), std::move(positions)}};
}

}  // namespace essh
