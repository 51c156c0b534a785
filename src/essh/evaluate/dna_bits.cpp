#include "essh/evaluate/dna_bits.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "essh/base/json.h"
#include "essh/base/progress.h"
#include "essh/config/fields.h"
#include "essh/evaluate/markov.h"
#include "essh/model/cost.h"

namespace essh {
namespace {

// Maps tokens to bases 0 to 3, others to MarkovChain::kOther.
class Bases {
 public:
  explicit Bases(const Tokenizer& tokenizer)
      : by_token_(static_cast<std::size_t>(tokenizer.vocab_size()), MarkovChain::kOther) {
    for (std::int8_t base = 0; base < MarkovChain::kBases; ++base) {
      const auto id = tokenizer.token_id(std::string_view("ACGT").substr(static_cast<std::size_t>(base), 1));
      if (!id)
        fail(ErrorKind::Usage,
             "evaluate dna: the tokenizer has no token for single bases; use `essh prepare --tokenizer nucleotides`");
      by_token_[static_cast<std::size_t>(*id)] = base;
    }
  }

  std::int8_t operator[](std::int32_t token) const {
    const auto id = static_cast<std::size_t>(token);
    return id < by_token_.size() ? by_token_[id] : MarkovChain::kOther;
  }
  std::vector<std::int8_t> of(std::span<const std::int32_t> tokens) const {
    std::vector<std::int8_t> bases;
    for (const auto token : tokens) bases.push_back((*this)[token]);
    return bases;
  }

 private:
  std::vector<std::int8_t> by_token_;
};

// Chains of order 0 to `order`.
std::vector<MarkovChain> count_chains(const TokenStream& train, const Bases& bases, int order, Index& counted) {
  constexpr std::int64_t kPiece = 1 << 20;
  std::vector<MarkovChain> chains;
  for (int k = 0; k <= order; ++k) chains.emplace_back(k);
  std::vector<std::int32_t> tokens;
  for (std::int64_t first = 0; first < train.tokens(); first += kPiece) {
    tokens.resize(static_cast<std::size_t>(std::min(kPiece, train.tokens() - first)));
    train.read(first, tokens);
    const auto found = bases.of(tokens);
    counted += std::ranges::count_if(found, [](auto base) { return base != MarkovChain::kOther; });
    for (auto& chain : chains) chain.learn(found);
  }
  return chains;
}

}  // namespace

DnaReport measure_dna(Engine& engine, const Dataset& dataset, const Tokenizer& tokenizer, const DnaOptions& options) {
  const Bases bases(tokenizer);
  const Index stride = options.context + 1;
  DnaReport report{.context = options.context,
                   .windows = std::min<Index>(options.windows, dataset.valid().tokens() / stride)};
  if (report.windows < 1)
    fail(ErrorKind::Usage,
         "evaluate dna: the validation split has {} tokens, one window takes {}; hold out more (`essh prepare "
         "--holdout`) or use a smaller --context",
         dataset.valid().tokens(), stride);
  const auto chains = count_chains(dataset.train(), bases, options.order, report.training_bases);

  report.markov.resize(chains.size());
  std::vector<double> sums(options.tiers.size());
  std::vector<std::int32_t> stretch, targets;
  Outputs outputs;
  Progress progress("evaluate",
                    static_cast<double>(report.windows * options.context) * static_cast<double>(sums.size()), "tok");
  double done = 0;
  for (Index first = 0; first < report.windows; first += options.batch) {
    const Index count = std::min(options.batch, report.windows - first);
    stretch.resize(static_cast<std::size_t>(count * stride));
    dataset.valid().read(first * stride, stretch);
    engine.model().check_tokens(stretch, "the validation split");
    targets.clear();
    for (Index w = 0; w < count; ++w) {
      const auto window =
          std::span(stretch).subspan(static_cast<std::size_t>(w * stride), static_cast<std::size_t>(stride));
      for (const auto token : window.subspan(1))
        targets.push_back(bases[token] == MarkovChain::kOther ? kUnscored : token);
      const auto found = bases.of(window);
      report.bases +=
          std::count_if(found.begin() + 1, found.end(), [](auto base) { return base != MarkovChain::kOther; });
      for (std::size_t k = 0; k < chains.size(); ++k) {
        const auto bits = chains[k].bits(found);
        report.markov[k] = std::accumulate(bits.begin() + 1, bits.end(), report.markov[k]);
      }
    }
    for (std::size_t t = 0; t < sums.size(); ++t) {
      std::vector<Chunk> chunks;
      for (Index w = 0; w < count; ++w)
        chunks.push_back({.slot = engine.open(options.tiers[t]),
                          .tokens = std::span(stretch).subspan(static_cast<std::size_t>(w * stride),
                                                               static_cast<std::size_t>(options.context)),
                          .wanted = Wanted::Scores,
                          .targets = std::span(targets).subspan(static_cast<std::size_t>(w * options.context),
                                                                static_cast<std::size_t>(options.context))});
      engine.run(chunks, outputs);
      for (std::size_t i = 0; i < chunks.size(); ++i) {
        for (const float loss : outputs.entries[i].losses) sums[t] += static_cast<double>(loss);
        engine.close(chunks[i].slot);
      }
      if (!std::isfinite(sums[t]))
        fail(ErrorKind::BadFile, "evaluate dna: tier {} gives a loss that is not finite", options.tiers[t].name);
      done += static_cast<double>(count * options.context);
      progress.update(done, options.tiers[t].name);
    }
  }
  progress.finish();
  const auto per_base = 1 / static_cast<double>(std::max<Index>(report.bases, 1));
  for (auto& bits : report.markov) bits *= per_base;
  for (std::size_t t = 0; t < sums.size(); ++t)
    report.tiers.push_back({.tier = options.tiers[t],
                            .parameters = cost_of(engine.config(), options.tiers[t].capacity).parameters,
                            .bits = sums[t] * per_base / std::numbers::ln2});
  return report;
}

Json to_json(const DnaReport& report, const std::string& model, const ResultProvenance& provenance) {
  Json results = Json::array(), markov = Json::array();
  for (const auto& tier : report.tiers)
    results.push_back({{"tier", tier.tier.name}, {"parameters", tier.parameters}, {"bits_per_base", tier.bits}});
  for (std::size_t k = 0; k < report.markov.size(); ++k)
    markov.push_back({{"order", k}, {"bits_per_base", report.markov[k]}});
  return {{"model", model},
          {"protocol", "dna"},
          {"context", report.context},
          {"windows", report.windows},
          {"bases", report.bases},
          {"training_bases", report.training_bases},
          {"results", std::move(results)},
          {"markov", std::move(markov)},
          {"provenance", write_fields(provenance)}};
}

}  // namespace essh
