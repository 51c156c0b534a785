#include <fmt/format.h>

#include <memory>

#include "apps/essh/cost_line.h"
#include "apps/essh/device_options.h"
#include "apps/essh/evaluate_verbs.h"
#include "apps/essh/number_option.h"
#include "apps/essh/output_file.h"
#include "essh/base/file.h"
#include "essh/base/json.h"
#include "essh/evaluate/evaluation_text.h"
#include "essh/evaluate/niah.h"
#include "essh/evaluate/tier_choice.h"
#include "essh/store/run_folder.h"

namespace essh::verbs {
namespace {
namespace fs = std::filesystem;

struct EvaluateNiahOptions {
  std::vector<std::string> models, tiers = {"all"};
  std::vector<fs::path> filler;
  std::string tokenizer, dump, svg, journal, condition = "counterfactual";
  std::int64_t filler_tokens = 1 << 20;
  NiahOptions niah;
  DeviceOptions device;
  bool json = false;
};

std::vector<TokenId> filler_of(const EvaluateNiahOptions& o, const fs::path& folder, const Tokenizer& tokenizer,
                               TokenId eos, SharedTexts& texts) {
  if (o.filler.empty()) return tokenizer.encode(niah_sentences(), {.parse_special_tokens = false});
  const auto& text = texts.open(o.filler, folder, o.tokenizer, eos, o.filler_tokens, DocumentJoin::Newline);
  std::vector<TokenId> filler(static_cast<std::size_t>(text.tokens()));
  text.read(0, filler);
  return filler;
}

void print_table(const NiahReport& report, const std::string& model) {
  const auto& o = report.options;
  fmt::print("{}: {} keys, {} pairs at {} depths; +- half of the 95% interval over pairs\n\n", model,
             o.counterfactual ? "counterfactual" : "planted", o.pairs, o.depths.size());
  fmt::print("{:<10} {:>7} {:>16} {:>16} {:>16}  full key at depth", "tier", "length", "margin win", "first token",
             "full key");
  for (const double depth : o.depths) fmt::print(" {:>5}", fmt::format("{:.2g}", depth));
  fmt::print("\n");
  for (const auto& r : report.results) {
    const auto share = [](const NiahShare& s) { return fmt::format("{:.4f} +- {:.4f}", s.value, s.half_width); };
    fmt::print("{:<10} {:>7} {:>16} {:>16} {:>16}  {:>17}", o.tiers[r.tier].name, r.length, share(r.margin),
               share(r.first), share(r.full), "");
    for (const double full : r.full_by_depth) fmt::print(" {:>5.3f}", full);
    fmt::print("\n");
  }
}

void run(const EvaluateNiahOptions& o) {
  for (const auto& file : {o.dump, o.svg}) {
    if (!file.empty()) check_output_file(file);
  }
  const CostLine cost;
  OpenDevice device(o.device);
  ResultJournal journal(o.journal);
  Json list = Json::array();
  std::string dump;
  plot::Figure figure;
  SharedTexts texts;
  for (const auto& model : o.models) {
    const auto folder = model_of_run(model);
    Engine engine(StoredModel::open(folder), device.stream, o.device.engine());
    const auto tokenizer = load_tokenizer(o.tokenizer.empty() ? folder : fs::path(o.tokenizer));
    const auto filler = filler_of(o, folder, *tokenizer, static_cast<TokenId>(engine.config().eos_token_id), texts);
    auto options = o.niah;
    options.counterfactual = o.condition == "counterfactual";
    options.tiers = choose_tiers(folder, engine.config(), o.tiers);
    const auto report = measure_niah(engine, *tokenizer, filler, options, journal);
    auto drawn = draw(report, model);
    for (auto& panel : drawn.panels) {
      if (o.models.size() > 1) panel.title = model + ": " + panel.title;
      figure.panels.push_back(std::move(panel));
    }
    for (const auto& trial : report.trials) {
      auto line = to_json(trial, report);
      line["model"] = model;
      if (!o.dump.empty()) dump += to_text(line) + "\n";
    }
    if (o.json)
      list.push_back(to_json(report, model,
                             provenance_of(engine.model(), folder,
                                           EvaluationText::from_tokens(filler, "filler").fingerprint(), options.seed)));
    else
      print_table(report, model);
  }
  if (!o.dump.empty()) write_durably(o.dump, dump);
  if (!o.svg.empty()) write_durably(o.svg, to_svg(figure));
  if (o.json) fmt::print("{}\n", to_text(list.size() == 1 ? list.front() : list, 2));
}

}  // namespace

void add_evaluate_niah(Verb& verb) {
  auto* niah = verb.add_subcommand("niah", "retrieval of a six-digit key from filler, by depth and length");
  auto o = std::make_shared<EvaluateNiahOptions>();
  niah->add_option("MODEL", o->models, "model or run folders")->required();
  add_number(*niah, "--lengths", o->niah.lengths, "tokens before the key that is asked for: 512,1024,2048", 1,
             Index{1} << 24)
      ->delimiter(',')
      ->capture_default_str();
  add_number(*niah, "--depths", o->niah.depths, "where the key stands, from 0 to 1", 0.0, 1.0)
      ->delimiter(',')
      ->capture_default_str();
  add_number(*niah, "--pairs", o->niah.pairs, "pairs of keys, each at every depth", 1, Index{1} << 32)
      ->capture_default_str();
  niah->add_option("--condition", o->condition, "which key of a pair stands in the text")
      ->one_of({"counterfactual", "planted"})
      ->capture_default_str();
  niah->add_option("--filler", o->filler, "text files around the key (default: five plain sentences, repeated)");
  add_number(*niah, "--bootstrap", o->niah.bootstrap, "resamples of pairs", 0, 100'000'000)->capture_default_str();
  add_seed(*niah, o->niah.seed, "of keys and places in the filler");
  niah->add_option("--tiers,--tier", o->tiers, "all, or some: T1,T4,xi=0.3,18x1792")
      ->delimiter(',')
      ->capture_default_str();
  niah->add_option("--tokenizer", o->tokenizer, "a tokenizer, when the model folder has none");
  niah->add_option("--dump", o->dump, "write the scores of every trial, one JSON object a line");
  niah->add_option("--svg", o->svg, "draw full keys and first tokens by depth");
  niah->add_option("--journal", o->journal, "keeps the scores of finished passes; the same command goes on");
  o->device.add_to(*niah);
  o->device.add_deterministic(*niah);
  niah->add_flag("--json", o->json, "print JSON: one object, or a list of them for several models");
  niah->footer(
      "Example: essh evaluate niah runs/tiny --lengths 512,2048 --tiers T1,T10\n         essh evaluate niah exports/T4 "
      "--filler heldout.txt --dump scores.jsonl");
  niah->callback([o] { run(*o); });
}

}  // namespace essh::verbs
