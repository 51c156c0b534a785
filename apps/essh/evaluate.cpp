#include <algorithm>
#include <limits>
#include <memory>

#include "apps/essh/cost_line.h"
#include "apps/essh/device_options.h"
#include "apps/essh/evaluate_verbs.h"
#include "apps/essh/number_option.h"
#include "apps/essh/verbs.h"
#include "essh/base/json.h"
#include "essh/base/log.h"
#include "essh/base/units.h"
#include "essh/evaluate/perplexity.h"
#include "essh/evaluate/recall.h"
#include "essh/evaluate/tier_choice.h"
#include "essh/store/run_folder.h"
#include "essh/train/training_data.h"

namespace essh::verbs {
namespace {
namespace fs = std::filesystem;

struct EvaluateOptions {
  std::vector<std::string> models, tiers = {"all"};
  std::vector<fs::path> data;
  std::string tokenizer;
  fs::path journal;
  std::int64_t context = kDefaultContext, windows = 0, batch = 0;
  DeviceOptions device;
  bool cross_domain = false, stateful = false, domains = false, json = false;
};

PerplexityReport measure(const EvaluateOptions& o, const fs::path& folder, Engine& engine, const EvaluationText& text,
                         ResultJournal& journal) {
  auto report = measure_perplexity(engine, text,
                                   {.tiers = choose_tiers(folder, engine.config(), o.tiers),
                                    .context = o.context,
                                    .windows = o.windows,
                                    .batch = o.batch,
                                    .disjoint = o.cross_domain,
                                    .stateful = o.stateful,
                                    .full_parameters = family_of(engine.model(), folder).full_parameters,
                                    .journal = o.journal.empty() ? nullptr : &journal});
  log::info("{}: {} {}, {} tokens predicted, {} left out; {:.1f} s, {:.2f} times the forward passes of its tiers",
            text.name(), report.windows,
            o.stateful ? std::string("documents") : fmt::format("windows of {} tokens", report.context), report.tokens,
            o.windows > 0 ? "the rest" : fmt::format("{}", report.left_out), report.seconds,
            report.seconds / report.forward_seconds);
  return report;
}

void print_table(const PerplexityReport& report, const std::string& model) {
  fmt::print("{}: {}, {} tokens{}\n\n", model,
             report.stateful ? fmt::format("{} documents from beginning to end", report.windows)
                             : fmt::format("{}context {}", report.disjoint ? "cross-domain, " : "", report.context),
             report.tokens, report.bytes > 0 ? fmt::format(", {} of text", format_bytes(report.bytes)) : "");
  fmt::print("{:<10} {:>15} {:>7} {:>9} {:>9} {:>11} {:>10}\n", "tier", "parameters", "r", "nll", "d nll", "perplexity",
             "bits/byte");
  for (const auto& tier : report.tiers) {
    fmt::print("{:<10} {:>15} {:>7} {:>9.4f} {:>9} {:>11.3f} {:>10}\n", tier.tier.name, tier.parameters,
               tier.fraction > 0 ? fmt::format("{:.3f}", tier.fraction) : "-", tier.nll,
               tier.nll_difference ? fmt::format("{:+.4f}", *tier.nll_difference) : "-", tier.perplexity,
               report.bytes > 0 ? fmt::format("{:.4f}", tier.bits_per_byte) : "-");
  }
}

// Perplexity per tier, one column per model or domain; tiers in order of first occurrence.
void print_comparison(const std::vector<PerplexityReport>& reports, const std::vector<std::string>& models,
                      const std::string& title) {
  std::vector<std::string> tiers;
  for (const auto& report : reports) {
    for (const auto& tier : report.tiers) {
      if (std::find(tiers.begin(), tiers.end(), tier.tier.name) == tiers.end()) tiers.push_back(tier.tier.name);
    }
  }
  fmt::print("{}\n\n{:<10}", title, "tier");
  const auto width = [](const std::string& model) { return std::max<std::size_t>(12, model.size() + 2); };
  for (const auto& model : models) fmt::print("{:>{}}", model, width(model));
  fmt::print("\n");
  for (const auto& name : tiers) {
    fmt::print("{:<10}", name);
    for (std::size_t m = 0; m < models.size(); ++m) {
      const auto& measured = reports[m].tiers;
      const auto found =
          std::find_if(measured.begin(), measured.end(), [&](const auto& tier) { return tier.tier.name == name; });
      fmt::print("{:>{}}", found == measured.end() ? "-" : fmt::format("{:.3f}", found->perplexity), width(models[m]));
    }
    fmt::print("\n");
  }
}

void run(EvaluateOptions o) {
  if (o.stateful && o.cross_domain)
    fail(ErrorKind::Usage,
         "evaluate ppl: --stateful reads documents to their end-of-text tokens, which --cross-domain leaves out; give "
         "one of them");
  if (o.cross_domain && o.windows == 0) o.windows = kCrossDomainWindows;
  const auto most =
      o.windows > 0 && !o.stateful ? o.windows * (o.context + 1) + 1 : std::numeric_limits<std::int64_t>::max();
  const CostLine cost;
  OpenDevice device(o.device);
  // All files are one text, or each is one domain.
  std::vector<std::vector<fs::path>> data = {o.data};
  std::vector<std::string> names = {""};
  if (o.domains) {
    data.clear();
    names.clear();
    for (const auto& path : o.data) {
      data.push_back({path});
      names.push_back((path.has_filename() ? path : path.parent_path()).stem().string());
    }
  }
  const auto context =
      o.stateful ? std::string("documents from beginning to end") : fmt::format("context {}", o.context);
  Json list = Json::array();
  ResultJournal journal(o.journal);
  std::vector<PerplexityReport> by_model;
  SharedTexts texts;
  for (const auto& model : o.models) {
    const auto folder = model_of_run(model);
    Engine engine(StoredModel::open(folder), device.stream, o.device.engine());
    std::vector<PerplexityReport> reports;
    for (std::size_t d = 0; d < data.size(); ++d) {
      const auto& text = texts.open(data[d], folder, o.tokenizer, static_cast<TokenId>(engine.config().eos_token_id),
                                    most, o.cross_domain ? DocumentJoin::Newline : DocumentJoin::EndOfText);
      reports.push_back(measure(o, folder, engine, text, journal));
      auto json = to_json(reports.back(), model, provenance_of(engine.model(), folder, text.fingerprint(), 0));
      if (o.domains) json["domain"] = names[d];
      list.push_back(std::move(json));
    }
    if (o.json) continue;
    if (o.domains)
      print_comparison(reports, names, fmt::format("{}: perplexity, {}", model, context));
    else if (o.models.size() == 1)
      print_table(reports.front(), model);
    else
      by_model.push_back(std::move(reports.front()));
  }
  if (o.json) return fmt::print("{}\n", to_text(list.size() == 1 ? list.front() : list, 2));
  if (by_model.empty()) return;
  for (const auto& report : by_model) {
    if (report.tokens != by_model.front().tokens)
      log::warn("the models cut the text into different tokens: compare bits per byte (--json), not perplexities");
  }
  print_comparison(by_model, o.models, "perplexity, " + context);
}

void add_perplexity(Verb& verb) {
  auto* ppl = verb.add_subcommand("ppl", "perplexity and bits per byte of every tier on held-out text");
  auto o = std::make_shared<EvaluateOptions>();
  ppl->add_option("MODEL", o->models, "model or run folders")->required();
  ppl->add_option("--data", o->data,
                  "a prepared dataset (its validation split), or files of text, JSONL, .gz, .zst ...")
      ->required();
  ppl->add_option("--tiers", o->tiers, "all, or some: T1,T4,xi=0.3,18x1792")->delimiter(',')->capture_default_str();
  add_number(*ppl, "--context", o->context, "tokens a window predicts, from nothing", 1, std::int64_t{1} << 24)
      ->capture_default_str();
  add_number(*ppl, "--windows", o->windows,
             "limit on the windows, from the first (default: all; 400 with --cross-domain)", 1, std::int64_t{1} << 32);
  add_number(*ppl, "--batch", o->batch, "windows in one pass (default: about 4096 tokens)", 1, std::int64_t{1} << 20);
  ppl->add_flag("--cross-domain", o->cross_domain,
                "documents of text files joined by line breaks, disjoint windows of context + 1 tokens, the first 400");
  ppl->add_flag("--stateful", o->stateful,
                "every document from its beginning to its end instead of windows; --windows counts documents");
  ppl->add_flag("--domains", o->domains, "each of --data is a text of its own: a column each");
  ppl->add_option("--tokenizer", o->tokenizer, "a tokenizer for text files, when the model folder has none");
  ppl->add_option("--journal", o->journal, "keeps the losses of finished passes; the same command goes on");
  o->device.add_to(*ppl);
  o->device.add_deterministic(*ppl);
  ppl->add_flag("--json", o->json, "print JSON: one object, or a list of them for several models");
  ppl->footer(
      "Example: essh evaluate ppl runs/tiny --data heldout.txt --context 512 --tiers T1,T4,T10\n         essh evaluate "
      "ppl runs/elastic runs/dense --data heldout.txt\n         essh evaluate ppl runs/tiny --cross-domain --data "
      "heldout.txt --context 64");
  ppl->callback([o] { run(*o); });
}

struct RecallArguments {
  std::vector<std::string> models, tiers = {"all"};
  std::string task;
  std::int64_t length = 0, pairs = 0, symbols = 0;
  fs::path journal;
  RecallOptions recall;
  DeviceOptions device;
  bool json = false;
};

// The task that the model was trained on, overridden by the arguments.
TaskOptions task_of(const RecallArguments& a, const fs::path& folder) {
  DataRecipe data;
  if (fs::exists(folder / "essh.json")) {
    const auto provenance = read_json(folder / "essh.json", {.bytes = 8u << 20});
    if (provenance.is_object() && provenance.contains("recipe") && provenance["recipe"].is_string())
      data = parse_recipe(provenance["recipe"].get<std::string>(), (folder / "essh.json").string(), {}).data;
  }
  if (!a.task.empty() && a.task != data.task) data = {.task = a.task};
  if (a.length > 0) data.context = a.length;
  if (a.pairs > 0) data.pairs = a.pairs;
  if (a.symbols > 0) data.symbols = a.symbols;
  if (data.task.empty())
    fail(ErrorKind::Usage, "{}: was not trained on a task; say which with --task mqar or --task palindrome",
         folder.string());
  return task_options(data);
}

void print_table(const RecallReport& report, const std::string& model) {
  fmt::print("{}: {}{}, length {}, {} symbols, {} sequences, chance {:.4f}\n\n", model, report.task.name,
             report.task.name == "mqar" ? fmt::format(" of {} pairs", report.task.pairs) : "", report.task.length,
             report.task.symbols, report.samples, report.chance);
  fmt::print("{:<10} {:>15} {:>9} {:>9} {:>9}\n", "tier", "parameters", "accuracy", "complete", "nll");
  for (const auto& tier : report.tiers) {
    fmt::print("{:<10} {:>15} {:>9.4f} {:>9.4f} {:>9.4f}\n", tier.tier.name, tier.parameters, tier.accuracy,
               tier.complete, tier.nll);
  }
}

void run_recall(const RecallArguments& a) {
  const CostLine cost;
  OpenDevice device(a.device);
  Json list = Json::array();
  ResultJournal journal(a.journal);
  for (const auto& model : a.models) {
    const auto folder = model_of_run(model);
    Engine engine(StoredModel::open(folder), device.stream, a.device.engine());
    auto options = a.recall;
    if (!a.journal.empty()) options.journal = &journal;
    options.tiers = choose_tiers(folder, engine.config(), a.tiers);
    const SyntheticTask task(task_of(a, folder));
    const auto report = measure_recall(engine, task, options);
    if (a.json)
      list.push_back(to_json(report, model, provenance_of(engine.model(), folder, task.fingerprint(), options.seed)));
    else
      print_table(report, model);
  }
  if (a.json) fmt::print("{}\n", to_text(list.size() == 1 ? list.front() : list, 2));
}

void add_recall(Verb& verb) {
  auto* recall = verb.add_subcommand("recall", "accuracy of every tier on held-out sequences of a recall task");
  auto a = std::make_shared<RecallArguments>();
  recall->add_option("MODEL", a->models, "model or run folders")->required();
  recall->add_option("--task", a->task, "mqar or palindrome (default: what the model was trained on; likewise below)");
  add_number(*recall, "--length", a->length, "tokens per sequence", 1, std::int64_t{1} << 24);
  add_number(*recall, "--pairs", a->pairs, "mqar: keys with their values", 1, std::int64_t{1} << 22);
  add_number(*recall, "--symbols", a->symbols, "of the task", 1, std::int64_t{1} << 24);
  add_number(*recall, "--samples", a->recall.samples, "sequences", 1, Index{1} << 32)->capture_default_str();
  add_seed(*recall, a->recall.seed, "of the held-out sequences");
  recall->add_option("--tiers", a->tiers, "all, or some: T1,T4,xi=0.3,18x1792")->delimiter(',')->capture_default_str();
  recall->add_option("--journal", a->journal, "keeps the answers of finished passes; the same command goes on");
  a->device.add_to(*recall);
  recall->add_flag("--json", a->json, "print JSON: one object, or a list of them for several models");
  recall->footer(
      "Example: essh evaluate recall runs/mqar --tiers T1,T4,T10\n         essh evaluate recall exports/T4 "
      "--task mqar --length 512 --pairs 64");
  recall->callback([a] { run_recall(*a); });
}

}  // namespace

void add_evaluate(Verb& app) {
  auto* verb = app.add_subcommand("evaluate", "measure the quality of a model's tiers");
  verb->require_subcommand(1);
  verb->footer("Example: essh evaluate ppl runs/tiny --data data/heldout");
  add_perplexity(*verb);
  add_recall(*verb);
  add_evaluate_tasks(*verb);
  add_evaluate_niah(*verb);
  add_evaluate_length(*verb);
  add_evaluate_dna(*verb);
  add_evaluate_channels(*verb);
  add_evaluate_cost(*verb);
}

}  // namespace essh::verbs
