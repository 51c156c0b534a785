#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "apps/essh/cost_line.h"
#include "apps/essh/device_options.h"
#include "apps/essh/evaluate_verbs.h"
#include "apps/essh/number_option.h"
#include "apps/essh/output_file.h"
#include "essh/base/file.h"
#include "essh/base/json.h"
#include "essh/evaluate/length_sweep.h"
#include "essh/evaluate/tier_choice.h"
#include "essh/store/run_folder.h"

namespace essh::verbs {
namespace {
namespace fs = std::filesystem;

struct EvaluateLengthOptions {
  std::string tokenizer, svg, journal;
  std::vector<std::string> models, tiers = {"all"};
  std::vector<fs::path> data;
  LengthOptions length;
  DeviceOptions device;
  bool json = false;
};

void print_table(const LengthReport& report, const std::string& model) {
  const auto& o = report.options;
  fmt::print("{}: perplexity by context length\n\n{:<10} {:>8}", model, "length", "windows");
  for (const auto& tier : o.tiers) fmt::print(" {:>11}", tier.name);
  fmt::print("\n");
  for (std::size_t l = 0; l < o.lengths.size(); ++l) {
    fmt::print("{:<10} {:>8}", o.lengths[l], report.results[l].windows);
    for (std::size_t t = 0; t < o.tiers.size(); ++t)
      fmt::print(" {:>11.3f}", report.results[t * o.lengths.size() + l].perplexity);
    fmt::print("\n");
  }
}

void run(const EvaluateLengthOptions& o) {
  if (!o.svg.empty()) check_output_file(o.svg);
  const CostLine cost;
  OpenDevice device(o.device);
  const auto most = (*std::ranges::max_element(o.length.lengths) + 1) * o.length.windows;
  ResultJournal journal(o.journal);
  SharedTexts texts;
  Json list = Json::array();
  plot::Figure figure;
  for (const auto& model : o.models) {
    const auto folder = model_of_run(model);
    Engine engine(StoredModel::open(folder), device.stream, o.device.engine());
    auto options = o.length;
    if (!o.journal.empty()) options.journal = &journal;
    options.tiers = choose_tiers(folder, engine.config(), o.tiers);
    const auto& text =
        texts.open(o.data, folder, o.tokenizer, static_cast<TokenId>(engine.config().eos_token_id), most);
    const auto report = measure_lengths(engine, text, options);
    auto drawn = draw(report, model);
    figure.title = o.models.size() == 1 ? drawn.title : "";
    for (auto& panel : drawn.panels) {
      if (o.models.size() > 1) panel.title = model + ": " + panel.title;
      figure.panels.push_back(std::move(panel));
    }
    list.push_back(to_json(report, model, provenance_of(engine.model(), folder, text.fingerprint(), 0)));
    if (!o.json) print_table(report, model);
  }
  if (!o.svg.empty()) write_durably(o.svg, to_svg(figure));
  if (o.json) fmt::print("{}\n", to_text(list.size() == 1 ? list.front() : list, 2));
}

}  // namespace

void add_evaluate_length(Verb& verb) {
  auto* length = verb.add_subcommand("length", "perplexity at several context lengths, and by position");
  auto o = std::make_shared<EvaluateLengthOptions>();
  length->add_option("MODEL", o->models, "model or run folders")->required();
  length->add_option("--data", o->data, "a prepared dataset (its validation split), or files of text")->required();
  add_number(*length, "--lengths", o->length.lengths, "tokens that a window predicts, from nothing", 1, Index{1} << 24)
      ->delimiter(',')
      ->capture_default_str();
  add_number(*length, "--windows", o->length.windows, "of each length, or as many as the text has", 1, Index{1} << 32)
      ->capture_default_str();
  add_number(*length, "--bins", o->length.bins, "of the positions of a window", 1, Index{1} << 20)
      ->capture_default_str();
  length->add_option("--tiers,--tier", o->tiers, "all, or some: T1,T4,xi=0.3,18x1792")
      ->delimiter(',')
      ->capture_default_str();
  length->add_option("--tokenizer", o->tokenizer, "a tokenizer for text files, when the model folder has none");
  length->add_option("--svg", o->svg, "draw perplexity by length and loss by position");
  length->add_option("--journal", o->journal, "keeps the losses of finished passes; the same command goes on");
  o->device.add_to(*length);
  o->device.add_deterministic(*length);
  length->add_flag("--json", o->json,
                   "print JSON with the loss by position: one object, or a list of them for several models");
  length->footer("Example: essh evaluate length runs/tiny --data heldout.txt --lengths 256,1024 --svg length.svg");
  length->callback([o] { run(*o); });
}

}  // namespace essh::verbs
