#include "essh/evaluate/perplexity.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "essh/base/json.h"
#include "essh/base/progress.h"
#include "essh/kernels/cross_entropy.h"
#include "essh/model/cost.h"

namespace essh {
namespace {

// Tokens of one pass: full matrix products, little memory.
constexpr Index kPassTokens = 4096;
// Logits held at once, in elements: the largest part of a pass for any real vocabulary.
constexpr Index kLogits = Index{4} << 20;

// Inputs and targets of consecutive windows, row by row.
struct Windows {
  std::vector<TokenId> inputs, targets;

  void read(const EvaluationText& text, Index first, Index count, Index context) {
    const auto size = static_cast<std::size_t>(count * context);
    std::vector<TokenId> stretch(size + 1);
    text.read(first * context, stretch);
    inputs.assign(stretch.begin(), stretch.end() - 1);
    targets.assign(stretch.begin() + 1, stretch.end());
  }
};

// Sum of the losses of a batch of windows.
double loss_of(const Runner& runner, const Pass& pass, const Windows& windows) {
  pass.arena.release();
  const Index tokens = pass.tokens();
  const auto inputs = pass.arena.vector<TokenId>(tokens), targets = pass.arena.vector<TokenId>(tokens);
  upload(pass.stream, windows.inputs, inputs);
  upload(pass.stream, windows.targets, targets);
  const auto loss = pass.arena.vector<float>(tokens);
  runner.with(pass.stream, [&](const auto& model, const auto& weights) {
    const auto hidden = model.forward(pass, weights, inputs, nullptr);
    const Index vocabulary = runner.config().vocab_size;
    const Index chunk = std::min(hidden.rows, std::max<Index>(16, kLogits / vocabulary));
    const auto logits = pass.arena.template matrix<float>(chunk, vocabulary);
    for (Index row = 0; row < hidden.rows; row += chunk) {
      const Index rows = std::min(chunk, hidden.rows - row);
      model.head(pass, weights, hidden.middle(row, rows), logits.top(rows));
      launch(pass.stream, CrossEntropy<float>{.logits = logits.top(rows),
                                              .targets = {targets.data + row, rows},
                                              .loss = {loss.data + row, rows},
                                              .d_logits = {}});
    }
  });
  std::vector<float> losses(static_cast<std::size_t>(tokens));
  download(pass.stream, loss, losses);
  double sum = 0;
  for (const float one : losses) sum += static_cast<double>(one);
  return sum;
}

Index count_windows(const EvaluationText& text, const PerplexityOptions& options) {
  if (options.context < 1) fail(ErrorKind::Usage, "evaluate: --context must be at least 1, got {}", options.context);
  const Index available = std::max<Index>(text.tokens() - 1, 0) / options.context;
  if (available < 1) {
    fail(ErrorKind::Usage, "{}: {} tokens, one window takes {}; give more text or a smaller --context", text.name(),
         text.tokens(), options.context + 1);
  }
  return options.windows > 0 ? std::min(options.windows, available) : available;
}

}  // namespace

PerplexityReport measure_perplexity(const Runner& runner, Stream& stream, const EvaluationText& text,
                                    const PerplexityOptions& options) {
  PerplexityReport report{.context = options.context, .windows = count_windows(text, options)};
  report.tokens = report.windows * options.context;
  report.left_out = text.tokens() - report.tokens - 1;
  const Index batch = options.batch > 0 ? options.batch : std::max<Index>(1, kPassTokens / options.context);

  std::vector<double> sums(options.tiers.size());
  Windows windows;
  Arena arena(stream.device());
  Progress progress("evaluate", static_cast<double>(report.tokens) * static_cast<double>(sums.size()), "tok");
  double done = 0;
  for (Index first = 0; first < report.windows; first += batch) {
    const Index count = std::min(batch, report.windows - first);
    windows.read(text, first, count, options.context);
    runner.check_tokens(windows.inputs, text.name());
    runner.check_tokens(windows.targets, text.name());
    report.bytes += text.bytes(windows.targets);
    for (std::size_t t = 0; t < sums.size(); ++t) {
      sums[t] += loss_of(runner,
                         {.stream = stream,
                          .arena = arena,
                          .capacity = options.tiers[t].capacity,
                          .sequences = count,
                          .length = options.context},
                         windows);
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
                            .parameters = cost_of(runner.config(), options.tiers[t].capacity).parameters,
                            .nll = nll,
                            .perplexity = std::exp(nll),
                            .bits_per_byte = report.bytes > 0 ? sums[t] / (std::numbers::ln2 * report.bytes) : 0});
  }
  return report;
}

Json to_json(const PerplexityReport& report, const std::string& model) {
  Json results = Json::array();
  for (const auto& tier : report.tiers) {
    results.push_back({{"tier", tier.tier.name},
                       {"parameters", tier.parameters},
                       {"tokens", report.tokens},
                       {"nll", tier.nll},
                       {"perplexity", tier.perplexity},
                       {"bits_per_byte", report.bytes > 0 ? Json(tier.bits_per_byte) : Json()}});
  }
  return {{"model", model}, {"results", std::move(results)}};
}

}  // namespace essh
