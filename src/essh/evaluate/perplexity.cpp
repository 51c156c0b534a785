#include "essh/evaluate/perplexity.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numbers>

#include "essh/base/progress.h"
#include "essh/config/fields.h"
#include "essh/model/cost.h"

namespace essh {
namespace {

// Tokens of one pass: enough for full matrix products, with little memory.
constexpr Index kPerplexityPassTokens = 4096;

// Tokens from the start of one window to the start of the next.
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

using Clock = std::chrono::steady_clock;

// Sum of the losses of a batch of windows, each in a slot of its own.
double loss_of(Engine& engine, const Tier& tier, const Windows& windows, std::size_t context, Outputs& outputs,
               double& seconds) {
  std::vector<Chunk> chunks;
  for (std::size_t first = 0; first < windows.inputs.size(); first += context) {
    chunks.push_back({.slot = engine.open(tier),
                      .tokens = std::span(windows.inputs).subspan(first, context),
                      .wanted = Wanted::Scores,
                      .targets = std::span(windows.targets).subspan(first, context)});
  }
  const auto start = Clock::now();
  engine.run(chunks, outputs);
  seconds += std::chrono::duration<double>(Clock::now() - start).count();
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

// Token range of a document with its end-of-text token.
struct Document {
  Index begin, end;
  Index targets() const { return end - begin - 1; }
};

// The first `most` documents (0: all) that have a target.
std::vector<Document> find_documents(const EvaluationText& text, TokenId eos, Index most) {
  constexpr Index kPiece = Index{1} << 20;
  std::vector<Document> documents;
  std::vector<TokenId> tokens;
  Index begin = 0;
  const auto add = [&](Index end) {
    if (end - begin > 1) documents.push_back({begin, end});
    begin = end;
    return most == 0 || std::ssize(documents) < most;
  };
  for (Index first = 0; first < text.tokens(); first += kPiece) {
    tokens.resize(static_cast<std::size_t>(std::min(kPiece, text.tokens() - first)));
    text.read(first, tokens);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] == eos && !add(first + static_cast<Index>(i) + 1)) return documents;
    }
  }
  add(text.tokens());
  return documents;
}

// Sum of the losses of some documents. A slot carries the state of a document from piece to piece.
double loss_of(Engine& engine, const Tier& tier, const std::vector<std::vector<TokenId>>& documents, Index piece,
               Outputs& outputs, double& seconds) {
  std::vector<Slot> slots;
  for (std::size_t i = 0; i < documents.size(); ++i) slots.push_back(engine.open(tier));
  double sum = 0;
  for (std::size_t first = 0;; first += static_cast<std::size_t>(piece)) {
    std::vector<Chunk> chunks;
    for (std::size_t i = 0; i < documents.size(); ++i) {
      const auto targets = std::span(documents[i]).subspan(1);
      if (first >= targets.size()) continue;
      const auto count = std::min(static_cast<std::size_t>(piece), targets.size() - first);
      chunks.push_back({.slot = slots[i],
                        .tokens = std::span(documents[i]).subspan(first, count),
                        .wanted = Wanted::Scores,
                        .targets = targets.subspan(first, count)});
    }
    if (chunks.empty()) break;
    const auto start = Clock::now();
    engine.run(chunks, outputs);
    seconds += std::chrono::duration<double>(Clock::now() - start).count();
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      for (const float one : outputs.entries[i].losses) sum += static_cast<double>(one);
    }
  }
  for (const auto slot : slots) engine.close(slot);
  return sum;
}

// Everything that the losses of a pass depend on, except tier and windows.
std::string journal_key(const Engine& engine, const EvaluationText& text, const PerplexityOptions& options) {
  return fmt::format("ppl {} precision {} data {} {} {}", engine.model().hash(), static_cast<int>(engine.precision()),
                     text.fingerprint(),
                     options.stateful   ? "documents in pieces of"
                     : options.disjoint ? "disjoint windows of"
                                        : "windows of",
                     options.context);
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
  const auto start = Clock::now();
  PerplexityReport report{.context = options.context, .disjoint = options.disjoint, .stateful = options.stateful};
  std::vector<Document> documents;
  if (options.stateful) {
    documents = find_documents(text, static_cast<TokenId>(engine.config().eos_token_id), options.windows);
    if (documents.empty()) fail(ErrorKind::Usage, "{}: no document has two tokens; give more text", text.name());
    report.windows = std::ssize(documents);
    for (const auto& document : documents) report.tokens += document.targets();
    report.left_out = text.tokens() - documents.back().end;
  } else {
    report.windows = count_windows(text, options);
    report.tokens = report.windows * options.context;
    report.left_out = text.tokens() - report.windows * stride_of(options) - (options.disjoint ? 0 : 1);
  }
  const Index batch = options.batch > 0 ? options.batch : std::max<Index>(1, kPerplexityPassTokens / options.context);

  const auto key = options.journal == nullptr ? "" : journal_key(engine, text, options);
  if (options.journal != nullptr) options.journal->announce(key);
  std::vector<double> sums(options.tiers.size());
  double kept_seconds = 0;
  Windows windows;
  std::vector<std::vector<TokenId>> whole(static_cast<std::size_t>(options.stateful ? batch : 0));
  Outputs outputs;
  Progress progress("evaluate", static_cast<double>(report.tokens) * static_cast<double>(sums.size()), "tok");
  double done = 0;
  for (Index first = 0; first < report.windows; first += batch) {
    const Index count = std::min(batch, report.windows - first);
    Index targets = 0;
    if (options.stateful) {
      whole.resize(static_cast<std::size_t>(count));
      for (Index i = 0; i < count; ++i) {
        const auto& document = documents[static_cast<std::size_t>(first + i)];
        auto& tokens = whole[static_cast<std::size_t>(i)];
        tokens.resize(static_cast<std::size_t>(document.end - document.begin));
        text.read(document.begin, tokens);
        engine.model().check_tokens(tokens, text.name());
        report.bytes += text.bytes(std::span(tokens).subspan(1));
        targets += document.targets();
      }
    } else {
      windows.read(text, first, count, options);
      engine.model().check_tokens(windows.inputs, text.name());
      engine.model().check_tokens(windows.targets, text.name());
      report.bytes += text.bytes(windows.targets);
      targets = count * options.context;
    }
    for (std::size_t t = 0; t < sums.size(); ++t) {
      const auto& tier = options.tiers[t];
      bool kept = true;
      const auto pass = kept_or_measured(
          options.journal,
          fmt::format("{} {} {} to {}", key, sizes_of(engine.config(), tier.capacity), first, first + count), 2, [&] {
            kept = false;
            double seconds = 0;
            const double sum = options.stateful ? loss_of(engine, tier, whole, options.context, outputs, seconds)
                                                : loss_of(engine, tier, windows,
                                                          static_cast<std::size_t>(options.context), outputs, seconds);
            if (!std::isfinite(sum)) {
              fail(ErrorKind::BadFile, "{}: tier {} gives a loss that is not finite in {} {} to {}", text.name(),
                   tier.name, options.stateful ? "documents" : "windows", first, first + count - 1);
            }
            return std::vector{sum, seconds};
          });
      sums[t] += pass[0];
      report.forward_seconds += pass[1];
      if (kept) kept_seconds += pass[1];
      done += static_cast<double>(targets);
      progress.update(done, tier.name);
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
  report.seconds = kept_seconds + std::chrono::duration<double>(Clock::now() - start).count();
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
          {"protocol", report.stateful   ? "stateful"
                       : report.disjoint ? "cross-domain"
                                         : "validation"},
          {"context", report.context},
          {report.stateful ? "documents" : "windows", report.windows},
          {"seconds", report.seconds},
          {"forward_seconds", report.forward_seconds},
          {"results", std::move(results)},
          {"provenance", write_fields(provenance)}};
}

}  // namespace essh
