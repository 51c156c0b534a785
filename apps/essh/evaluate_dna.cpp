#include <fmt/format.h>

#include <cmath>
#include <memory>

#include "apps/essh/cost_line.h"
#include "apps/essh/device_options.h"
#include "apps/essh/evaluate_verbs.h"
#include "apps/essh/number_option.h"
#include "essh/base/json.h"
#include "essh/base/progress.h"
#include "essh/config/fields.h"
#include "essh/evaluate/classification.h"
#include "essh/evaluate/dna_bits.h"
#include "essh/evaluate/result_journal.h"
#include "essh/evaluate/tier_choice.h"
#include "essh/model/cost.h"
#include "essh/model/initialise.h"
#include "essh/model/slice.h"
#include "essh/store/run_folder.h"

namespace essh::verbs {
namespace {
namespace fs = std::filesystem;

struct EvaluateDnaOptions {
  std::string model, data, pooling = "mean", journal;
  std::vector<std::string> tiers = {"all"};
  std::vector<fs::path> classify;
  std::vector<std::int64_t> seeds = {0, 197, 511};
  DnaOptions dna;
  SetOptions set;
  FineTuneOptions tuning;
  DeviceOptions device;
  bool no_control = false, json = false;
};

void print_bits(const DnaReport& report, const std::string& model) {
  fmt::print("{}: {} windows of {} bases, {} predicted\n\n{:<16} {:>12} {:>10}\n", model, report.windows,
             report.context, report.bases, "tier", "parameters", "bits/base");
  for (const auto& tier : report.tiers)
    fmt::print("{:<16} {:>12} {:>10.4f}\n", tier.tier.name, tier.parameters, tier.bits);
  for (std::size_t k = 0; k < report.markov.size(); ++k)
    fmt::print("{:<16} {:>12} {:>10.4f}\n", fmt::format("Markov, order {}", k), 3 * (std::int64_t{1} << (2 * k)),
               report.markov[k]);
}

Json measure_bits(const EvaluateDnaOptions& o, const fs::path& folder, Stream& stream) {
  Engine engine(StoredModel::open(folder), stream, o.device.engine());
  const Dataset dataset(o.data);
  const auto tokenizer = load_tokenizer(folder);
  if (tokenizer->hash() != dataset.tokenizer_hash())
    fail(ErrorKind::BadFile, "{}: prepared with another tokenizer than {}; prepare it again with that one", o.data,
         folder.string());
  auto options = o.dna;
  options.tiers = choose_tiers(folder, engine.config(), o.tiers);
  const auto report = measure_dna(engine, dataset, *tokenizer, options);
  if (!o.json) print_bits(report, o.model);
  return to_json(report, o.model, provenance_of(engine.model(), folder, dataset.fingerprint(), 0));
}

// A model to fine-tune: a tier of the trained family, or its full architecture untrained.
struct Start {
  std::string name;
  ModelConfig config;
  Parameters<float> weights;
  bool trained;
};

struct Spread {
  double mean = 0, deviation = 0;
};

Spread spread_of(const std::vector<FineTuned>& results) {
  Spread s;
  for (const auto& r : results) s.mean += r.test / static_cast<double>(results.size());
  for (const auto& r : results) s.deviation += (r.test - s.mean) * (r.test - s.mean);
  s.deviation = results.size() > 1 ? std::sqrt(s.deviation / static_cast<double>(results.size() - 1)) : 0;
  return s;
}

Json classify(const EvaluateDnaOptions& o, const fs::path& folder, Stream& stream) {
  const auto loaded = load_model(folder);
  const auto set = read_classification_set(o.classify, *load_tokenizer(folder), o.set);
  const auto stored = StoredModel::open(folder);
  for (const auto* examples : {&set.train, &set.test}) {
    for (const auto& example : *examples) stored.check_tokens(example.tokens, set.name);
  }
  std::vector<Start> starts;
  for (const auto& tier : choose_tiers(folder, loaded.config, o.tiers))
    starts.push_back(
        {tier.name, slice(loaded.config, tier.capacity), slice(loaded.config, loaded.parameters, tier.capacity), true});
  if (!o.no_control) starts.push_back({"no pretraining", loaded.config, Parameters<float>(loaded.config), false});

  ResultJournal journal(o.journal);
  Progress progress(
      "fine-tune", static_cast<double>(starts.size() * o.seeds.size()) * static_cast<double>(o.tuning.epochs), "epoch");
  double done = 0;
  Json results = Json::array();
  if (!o.json)
    fmt::print(
        "{}: {} sequences to train on, {} to test on, {} classes, the largest {:.4f} of the test\n\n{:<16} {:>12} "
        "{:>10} "
        "{:>8}  by seed\n",
        set.name, set.train.size(), set.test.size(), set.classes.size(), set.majority(), "model", "parameters",
        "accuracy", "+-");
  for (auto& start : starts) {
    std::vector<FineTuned> found;
    Json by_seed = Json::array();
    for (const auto seed : o.seeds) {
      auto options = o.tuning;
      options.seed = static_cast<std::uint64_t>(seed);
      options.pooling = o.pooling == "last" ? Pooling::Last : Pooling::Mean;
      const auto key = fmt::format("dna {} {} {} epochs {} batch {} rate {} validation {} {} seed {}",
                                   start.trained ? stored.hash() : std::string("initial weights"),
                                   sizes_of(start.config, full_capacity(start.config)), set.fingerprint, options.epochs,
                                   options.batch, options.rate, options.validation_share, o.pooling, seed);
      if (const auto* kept = journal.find(key)) {
        found.push_back(fine_tuned_from(*kept));
      } else {
        if (!start.trained) initialise(start.weights, start.config, options.seed);
        found.push_back(fine_tune(start.config, start.weights, set, options, stream, [&](Index epoch) {
          progress.update(done + static_cast<double>(epoch), fmt::format("{}, seed {}", start.name, seed));
        }));
        journal.add(key, to_json(found.back()));
      }
      done += static_cast<double>(o.tuning.epochs);
      progress.update(done);
      auto line = to_json(found.back());
      line["seed"] = seed;
      by_seed.push_back(std::move(line));
    }
    const auto spread = spread_of(found);
    const auto parameters = cost_of(start.config, full_capacity(start.config)).parameters;
    results.push_back({{"tier", start.name},
                       {"pretrained", start.trained},
                       {"parameters", parameters},
                       {"accuracy", spread.mean},
                       {"deviation", spread.deviation},
                       {"seeds", std::move(by_seed)}});
    if (o.json) continue;
    fmt::print("{:<16} {:>12} {:>10.4f} {:>8.4f} ", start.name, parameters, spread.mean, spread.deviation);
    for (const auto& one : found) fmt::print(" {:.4f} (epoch {})", one.test, one.best_epoch);
    fmt::print("\n");
  }
  progress.finish();
  auto provenance = provenance_of(stored, folder, set.fingerprint, static_cast<std::uint64_t>(o.seeds.front()));
  return {{"model", o.model},
          {"protocol", "classification"},
          {"set", set.name},
          {"classes", set.classes},
          {"train", set.train.size()},
          {"test", set.test.size()},
          {"majority", set.majority()},
          {"epochs", o.tuning.epochs},
          {"results", std::move(results)},
          {"provenance", write_fields(provenance)}};
}

void run(const EvaluateDnaOptions& o) {
  if (o.data.empty() == o.classify.empty())
    fail(ErrorKind::Usage, "evaluate dna: give --data (bits per base) or --classify (fine-tuning), one of them");
  const CostLine cost;
  OpenDevice device(o.device);
  const auto folder = model_of_run(o.model);
  const auto result = o.data.empty() ? classify(o, folder, device.stream) : measure_bits(o, folder, device.stream);
  if (o.json) fmt::print("{}\n", to_text(result, 2));
}

}  // namespace

void add_evaluate_dna(Verb& verb) {
  auto* dna = verb.add_subcommand("dna", "bits per base of held-out records, or classification by fine-tuning");
  auto o = std::make_shared<EvaluateDnaOptions>();
  dna->add_option("MODEL", o->model, "a model folder or a run")->required();
  dna->add_option("--data", o->data, "bits per base: a prepared dataset, whose training split the Markov chains count");
  add_number(*dna, "--context", o->dna.context, "bases that a window predicts, from nothing", 1, std::int64_t{1} << 24)
      ->capture_default_str();
  add_number(*dna, "--windows", o->dna.windows, "from the first on, or as many as there are", 1, std::int64_t{1} << 32)
      ->capture_default_str();
  add_number(*dna, "--batch", o->dna.batch, "windows in one pass", 1, std::int64_t{1} << 20)->capture_default_str();
  add_number(*dna, "--order", o->dna.order, "of the longest Markov chain beside the tiers", 0, 12)
      ->capture_default_str();
  dna->add_option("--classify", o->classify,
                  "fine-tuning: TSV or CSV with class, seq and maybe split, or a FASTA file per class");
  dna->add_option("--set", o->set.set, "the rows whose column `set` has this value");
  add_number(*dna, "--seeds", o->seeds, "one fine-tuning each", 0, std::int64_t{1} << 62)
      ->delimiter(',')
      ->capture_default_str();
  add_number(*dna, "--epochs", o->tuning.epochs, "over the training sequences", 1, 1'000'000)->capture_default_str();
  add_number(*dna, "--sequences", o->tuning.batch, "in one step", 1, 1 << 20)->capture_default_str();
  add_number(*dna, "--rate", o->tuning.rate, "peak learning rate", 0.0, 10.0)->capture_default_str();
  add_number(*dna, "--max-length", o->set.max_length, "longer sequences lose their end", 1, std::int64_t{1} << 24)
      ->capture_default_str();
  add_number(*dna, "--test-share", o->set.test_share, "of each class, where the files have no split", 0.0, 1.0)
      ->capture_default_str();
  dna->add_option("--pool", o->pooling, "hidden states that the head reads")
      ->one_of({"mean", "last"})
      ->capture_default_str();
  dna->add_flag("--no-control", o->no_control, "leave out the full architecture without pretraining");
  dna->add_option("--journal", o->journal, "keeps finished fine-tunings; the same command goes on");
  dna->add_option("--tiers,--tier", o->tiers, "all, or some: T1,T4,xi=0.3,18x1792")
      ->delimiter(',')
      ->capture_default_str();
  o->device.add_to(*dna);
  o->device.add_deterministic(*dna);
  dna->add_flag("--json", o->json, "print JSON");
  dna->footer(
      "Example: essh evaluate dna runs/dna --data data/genome --tiers T1,T10\n         essh evaluate dna runs/dna "
      "--classify promoters.tsv --tiers T1,T10 --seeds 0,197,511 --journal promoters.jsonl");
  dna->callback([o] { run(*o); });
}

}  // namespace essh::verbs
