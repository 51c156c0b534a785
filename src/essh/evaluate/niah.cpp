#include "essh/evaluate/niah.h"

#include <algorithm>
#include <cmath>

#include "essh/base/json.h"
#include "essh/base/progress.h"
#include "essh/base/rng.h"
#include "essh/base/sha256.h"
#include "essh/config/fields.h"
#include "essh/evaluate/harness_statistics.h"
#include "essh/evaluate/likelihood.h"
#include "essh/model/cost.h"

namespace essh {
namespace {

constexpr std::size_t kNeedlePassTokens = 8192;
constexpr const char* kSentence = " The secret key is";

struct KeyPair {
  std::string expected, rival;
  std::size_t filler = 0;  // offset of its filler
};

KeyPair draw_pair(const NiahOptions& options, Index pair, std::size_t filler_tokens) {
  Rng rng(options.seed, static_cast<std::uint64_t>(pair));
  const auto first = 100'000 + rng.below(900'000);
  auto second = first;
  while (second == first) second = 100'000 + rng.below(900'000);
  auto keys = std::pair(fmt::format("{}", second), fmt::format("{}", first));
  if (!options.counterfactual) std::swap(keys.first, keys.second);
  return {keys.first, keys.second, static_cast<std::size_t>(rng.below(filler_tokens))};
}

// The expected key and its rival after the same haystack.
EncodedItem make_trial(const KeyPair& keys, const Tokenizer& tokenizer, std::span<const TokenId> filler, Index length,
                       double depth) {
  const auto needle =
      tokenizer.encode(fmt::format("{} {}.", kSentence, keys.expected), {.parse_special_tokens = false});
  EncodedItem item;
  for (const auto& key : {keys.expected, keys.rival})
    item.push_back(encode_request({kSentence, " " + key}, tokenizer, 0, 0, "niah"));
  const auto question = item.front().context;
  const auto around = length - static_cast<Index>(needle.size() + question.size());
  if (around < 1) {
    fail(ErrorKind::Usage, "niah: a length of {} tokens leaves no room for filler; give at least {}", length,
         needle.size() + question.size() + 1);
  }
  const auto before = static_cast<Index>(std::llround(depth * static_cast<double>(around)));
  std::vector<TokenId> context;
  for (Index i = 0; i < around; ++i) {
    if (i == before) context.insert(context.end(), needle.begin(), needle.end());
    context.push_back(filler[(keys.filler + static_cast<std::size_t>(i)) % filler.size()]);
  }
  if (before == around) context.insert(context.end(), needle.begin(), needle.end());
  context.insert(context.end(), question.begin(), question.end());
  for (auto& request : item) request.context = context;
  return item;
}

// Statistics of the trials of one tier and length, ordered by pair.
NiahResult summarise(std::span<const NiahTrial> trials, const NiahOptions& options) {
  NiahResult result{.tier = trials.front().tier, .length = trials.front().length};
  const auto depths = options.depths.size();
  result.full_by_depth.resize(depths);
  result.first_by_depth.resize(depths);
  const auto share = [&](auto&& hit) {
    std::vector<double> sums(trials.size() / depths);
    for (std::size_t i = 0; i < trials.size(); ++i) sums[i / depths] += hit(trials[i]) ? 1.0 : 0.0;
    return NiahShare{mean_of(sums) / static_cast<double>(depths),
                     bootstrap_half_width(sums, static_cast<double>(depths), options.bootstrap,
                                          static_cast<std::uint32_t>(options.seed))};
  };
  result.margin = share([](const NiahTrial& t) { return t.expected_score > t.rival_score; });
  result.first = share([](const NiahTrial& t) { return t.first; });
  result.full = share([](const NiahTrial& t) { return t.full; });
  for (const auto& trial : trials) {
    result.full_by_depth[trial.depth] += trial.full ? 1.0 / static_cast<double>(options.pairs) : 0.0;
    result.first_by_depth[trial.depth] += trial.first ? 1.0 / static_cast<double>(options.pairs) : 0.0;
  }
  return result;
}

void check(const NiahOptions& options, std::span<const TokenId> filler) {
  if (filler.empty()) fail(ErrorKind::Usage, "niah: the filler has no tokens; give a file with text");
  for (const double depth : options.depths) {
    if (!(depth >= 0 && depth <= 1)) fail(ErrorKind::Usage, "niah: a depth must be between 0 and 1, got {}", depth);
  }
}

// Everything that the scores depend on, except tier and length.
std::string journal_key(const Engine& engine, const Tokenizer& tokenizer, std::span<const TokenId> filler,
                        const NiahOptions& options) {
  Sha256 hash;
  hash.update(std::as_bytes(filler));
  return fmt::format("niah {} {} precision {} filler {} depths {} seed {} {}", engine.model().hash(), tokenizer.hash(),
                     static_cast<int>(engine.precision()), hash.hex(), fmt::join(options.depths, ","), options.seed,
                     options.counterfactual ? "counterfactual" : "planted");
}

// Journal line of the scores of a pass, and its inverse.
Json scores_of(const std::vector<NiahTrial>& trials) {
  Json scores = Json::array();
  for (const auto& t : trials) scores.push_back(Json::array({t.expected_score, t.rival_score, t.first, t.full}));
  return scores;
}

void take_scores(std::vector<NiahTrial>& trials, const Json& scores) {
  if (!scores.is_array() || scores.size() != trials.size())
    fail(ErrorKind::BadFile, "niah: the journal has another number of trials; name another --journal");
  for (std::size_t i = 0; i < trials.size(); ++i) {
    trials[i].expected_score = scores[i][0].get<double>();
    trials[i].rival_score = scores[i][1].get<double>();
    trials[i].first = scores[i][2].get<bool>();
    trials[i].full = scores[i][3].get<bool>();
  }
}

double percentile(const std::vector<double>& sorted, double share) {
  const double place = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const auto above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

}  // namespace

double bootstrap_half_width(std::span<const double> sums, double size, int resamples, std::uint32_t seed) {
  if (resamples < 1 || sums.empty()) return 0;
  PythonRandom random(seed);
  std::vector<double> means;
  for (int r = 0; r < resamples; ++r) {
    double sum = 0;
    for (std::size_t i = 0; i < sums.size(); ++i)
      sum += sums[static_cast<std::size_t>(random.random() * static_cast<double>(sums.size()))];
    means.push_back(sum / (size * static_cast<double>(sums.size())));
  }
  std::ranges::sort(means);
  return (percentile(means, 0.975) - percentile(means, 0.025)) / 2;
}

NiahReport measure_niah(Engine& engine, const Tokenizer& tokenizer, std::span<const TokenId> filler,
                        const NiahOptions& options, ResultJournal& journal) {
  check(options, filler);
  engine.model().check_tokens(filler, "niah: filler");
  NiahReport report{.options = options, .parameters = {}, .trials = {}, .results = {}};
  for (const auto& tier : options.tiers)
    report.parameters.push_back(cost_of(engine.config(), tier.capacity).parameters);
  const auto depths = static_cast<Index>(options.depths.size());
  const auto key = journal_key(engine, tokenizer, filler, options);
  journal.announce(key);
  double total = 0, done = 0;
  for (const auto length : options.lengths)
    total += static_cast<double>(length * options.pairs * depths) * static_cast<double>(options.tiers.size());
  Progress progress("niah", total, "tok");
  // Tiers are the inner loop, so that the text of a pass is made once.
  std::vector<std::vector<std::vector<NiahTrial>>> found(options.tiers.size(),
                                                         std::vector<std::vector<NiahTrial>>(options.lengths.size()));
  for (std::size_t l = 0; l < options.lengths.size(); ++l) {
    const auto length = options.lengths[l];
    const auto batch = std::max<Index>(1, static_cast<Index>(kNeedlePassTokens) / length);
    for (Index first = 0; first < options.pairs * depths; first += batch) {
      const auto end = std::min(first + batch, options.pairs * depths);
      std::vector<EncodedItem> items;
      std::vector<NiahTrial> trials;
      for (Index n = first; n < end; ++n) {
        const auto depth = static_cast<std::size_t>(n % depths);
        const auto keys = draw_pair(options, n / depths, filler.size());
        items.push_back(make_trial(keys, tokenizer, filler, length, options.depths[depth]));
        engine.model().check_tokens(items.back().front().context, "niah");
        trials.push_back({.length = length,
                          .depth = depth,
                          .pair = n / depths,
                          .filler = keys.filler,
                          .expected = keys.expected,
                          .rival = keys.rival});
      }
      for (std::size_t t = 0; t < options.tiers.size(); ++t) {
        const auto& tier = options.tiers[t];
        const auto pass_key = fmt::format("{} {} length {} trials {} to {}", key,
                                          sizes_of(engine.config(), tier.capacity), length, first, end);
        if (const auto* kept = journal.find(pass_key)) {
          take_scores(trials, *kept);
        } else {
          const auto scores = measure_likelihoods(engine, tier, items, true);
          for (std::size_t i = 0; i < items.size(); ++i) {
            trials[i].expected_score = scores[i][0].log_likelihood;
            trials[i].rival_score = scores[i][1].log_likelihood;
            trials[i].first = scores[i][0].first_greedy;
            trials[i].full = scores[i][0].greedy;
            if (!std::isfinite(trials[i].expected_score) || !std::isfinite(trials[i].rival_score))
              fail(ErrorKind::BadFile, "niah: tier {} gives scores that are not finite", tier.name);
          }
          journal.add(pass_key, scores_of(trials));
        }
        for (auto trial : trials) {
          trial.tier = t;
          found[t][l].push_back(std::move(trial));
        }
        progress.update(done += static_cast<double>((end - first) * length), tier.name);
      }
    }
  }
  progress.finish();
  for (auto& tier : found) {
    for (auto& trials : tier) {
      report.results.push_back(summarise(trials, options));
      std::ranges::move(trials, std::back_inserter(report.trials));
    }
  }
  return report;
}

plot::Figure draw(const NiahReport& report, const std::string& title) {
  plot::Figure figure{.title = title};
  for (const auto length : report.options.lengths) {
    plot::Panel full{.title = fmt::format("full key, {} tokens", length),
                     .x = {.title = "depth", .min = 0, .max = 1},
                     .y = {.title = "share of trials", .min = 0, .max = 1}};
    plot::Panel first{.title = fmt::format("first token, {} tokens", length), .x = full.x, .y = full.y};
    for (const auto& result : report.results) {
      if (result.length != length) continue;
      plot::Series series{.name = report.options.tiers[result.tier].name,
                          .x = report.options.depths,
                          .y = result.full_by_depth,
                          .mark = plot::Mark::LineAndPoints};
      full.series.push_back(series);
      series.y = result.first_by_depth;
      first.series.push_back(std::move(series));
    }
    figure.panels.push_back(std::move(full));
    figure.panels.push_back(std::move(first));
  }
  return figure;
}

Json to_json(const NiahTrial& trial, const NiahReport& report) {
  return {{"tier", report.options.tiers[trial.tier].name},
          {"length", trial.length},
          {"depth", report.options.depths[trial.depth]},
          {"pair", trial.pair},
          {"filler", trial.filler},
          {"expected", trial.expected},
          {"rival", trial.rival},
          {"expected_score", trial.expected_score},
          {"rival_score", trial.rival_score},
          {"first_token", trial.first},
          {"full_key", trial.full}};
}

Json to_json(const NiahReport& report, const std::string& model, const ResultProvenance& provenance) {
  Json results = Json::array();
  for (const auto& result : report.results) {
    Json by_depth = Json::array();
    for (std::size_t d = 0; d < report.options.depths.size(); ++d) {
      by_depth.push_back({{"depth", report.options.depths[d]},
                          {"first_token", result.first_by_depth[d]},
                          {"full_key", result.full_by_depth[d]}});
    }
    results.push_back({{"tier", report.options.tiers[result.tier].name},
                       {"parameters", report.parameters[result.tier]},
                       {"length", result.length},
                       {"margin_win", result.margin.value},
                       {"margin_win_half_width", result.margin.half_width},
                       {"first_token", result.first.value},
                       {"first_token_half_width", result.first.half_width},
                       {"full_key", result.full.value},
                       {"full_key_half_width", result.full.half_width},
                       {"depths", std::move(by_depth)}});
  }
  return {{"model", model},
          {"protocol", report.options.counterfactual ? "niah, counterfactual" : "niah, planted"},
          {"pairs", report.options.pairs},
          {"bootstrap", report.options.bootstrap},
          {"results", std::move(results)},
          {"provenance", write_fields(provenance)}};
}

std::string niah_sentences() {
  return " The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";
}

}  // namespace essh
