#include <fmt/format.h>

#include <memory>

#include "apps/essh/cost_line.h"
#include "apps/essh/device_options.h"
#include "apps/essh/evaluate_verbs.h"
#include "apps/essh/number_option.h"
#include "essh/base/json.h"
#include "essh/base/machine.h"
#include "essh/base/thread_pool.h"
#include "essh/base/units.h"
#include "essh/evaluate/tasks.h"
#include "essh/evaluate/tier_choice.h"
#include "essh/store/run_folder.h"

namespace essh::verbs {
namespace {
namespace fs = std::filesystem;

struct EvaluateTasksOptions {
  std::vector<std::string> models, tiers = {"all"}, tasks = {"reference"};
  std::vector<fs::path> data;
  std::string tokenizer, show;
  fs::path journal;
  std::size_t limit = 0;
  TasksOptions measure;
  DeviceOptions device;
  bool list = false, json = false;
};

void list_tasks() {
  for (const auto& name : task_names()) fmt::print("{}\n", name);
}

void print_report(const TasksReport& report, const std::string& model) {
  double seconds = 0;
  std::size_t items = 0;
  for (const auto& task : report.tasks) {
    seconds += task.seconds;
    items += task.items;
  }
  fmt::print("{}: {}, {} items in {}, peak memory {}\n\n{}", model, kTasksProtocol, items, format_duration(seconds),
             format_bytes(static_cast<double>(peak_resident_memory())), to_table(report));
}

void run(const EvaluateTasksOptions& o) {
  if (o.list) return list_tasks();
  if (!o.show.empty()) return fmt::print("{}", task_yaml(o.show));
  if (o.models.empty()) fail(ErrorKind::Usage, "evaluate tasks: name a model folder or a run");
  std::vector<Task> tasks;
  for (const auto& name : expand_tasks(o.tasks)) tasks.push_back(load_task(name, o.data, o.limit));
  const CostLine cost;
  OpenDevice device(o.device);
  std::optional<ScoreJournal> journal;
  if (!o.journal.empty()) journal.emplace(o.journal);
  Json list = Json::array();
  EncodedTasks encoded;  // models with equal tokenizers share it
  for (const auto& model : o.models) {
    const auto folder = model_of_run(model);
    Engine engine(StoredModel::open(folder), device.stream, o.device.engine());
    auto options = o.measure;
    options.tiers = choose_tiers(folder, engine.config(), o.tiers);
    options.threads = o.device.threads > 0 ? o.device.threads : available_cores();
    options.journal = journal ? &*journal : nullptr;
    const auto tokenizer = load_tokenizer(o.tokenizer.empty() ? folder : fs::path(o.tokenizer));
    const auto eos = static_cast<TokenId>(engine.config().eos_token_id);
    if (encoded.tokenizer_hash != tokenizer->hash() || encoded.eos != eos)
      encoded = encode_tasks(tasks, *tokenizer, eos, options.most_tokens);
    const auto report = measure_tasks(engine, tasks, encoded, *tokenizer, options);
    if (o.json)
      list.push_back(to_json(report, model, provenance_of(engine.model(), folder, fingerprint_of(tasks), 0)));
    else
      print_report(report, model);
  }
  if (o.json) fmt::print("{}\n", to_text(list.size() == 1 ? list.front() : list, 2));
}

}  // namespace

void add_evaluate_tasks(Verb& verb) {
  auto* tasks = verb.add_subcommand("tasks", "zero-shot multiple choice, cloze and open-book generation");
  auto o = std::make_shared<EvaluateTasksOptions>();
  tasks->add_option("MODEL", o->models, "model or run folders");
  tasks
      ->add_option("--task", o->tasks,
                   "tasks, YAML files, or reference (seven tasks), additional (six), all of these, open_book (six)")
      ->delimiter(',')
      ->capture_default_str();
  tasks->add_option("--data", o->data, "folders with the tasks' files; a YAML file's own folder is looked at too");
  tasks->add_option("--tiers,--tier", o->tiers, "all, or some: T1,T4,xi=0.3,18x1792")
      ->delimiter(',')
      ->capture_default_str();
  add_number(*tasks, "--limit", o->limit, "only the first so many items of each task", 1, std::size_t{1} << 40);
  add_number(*tasks, "--max-length", o->measure.most_tokens, "inputs of a request, cut at the left (default: no limit)",
             1, std::size_t{1} << 40);
  add_number(*tasks, "--bootstrap", o->measure.bootstrap, "resamples for the error of a perplexity; 0: no error", 0,
             100'000'000)
      ->capture_default_str();
  tasks->add_option("--journal", o->journal,
                    "keep the scores of finished items in this file, and take those it has: a stopped run goes on");
  tasks->add_option("--tokenizer", o->tokenizer, "a tokenizer, when the model folder has none");
  o->device.add_to(*tasks);
  o->device.add_deterministic(*tasks);
  tasks->add_flag("--list", o->list, "print the names of the tasks and end");
  tasks->add_option("--show", o->show, "print the YAML text of a task and end");
  tasks->add_flag("--json", o->json, "print JSON: one object, or a list of them for several models");
  tasks->footer(
      "Example: essh evaluate tasks runs/tiny --task lambada,piqa --data eval --tiers T1,T10\n         essh evaluate "
      "tasks exports/T4 --task reference --data eval --journal scores.jsonl\n         essh evaluate tasks --show piqa");
  tasks->callback([o] { run(*o); });
}

}  // namespace essh::verbs
