#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "essh/base/json_fwd.h"
#include "essh/config/field.h"

namespace essh {

// The YAML description of a task. Texts are templates over a record, see task_template.h. Kinds of tasks:
//   choices     each choice continues `text` after `delimiter`
//   contexts    `continuation` follows each of them (partial scoring)
//   answers     right if the greedy continuation of `text` contains one of them (generation)
//   none        `continuation` follows `text` (cloze)
struct TaskDescription {
  std::string task;
  std::string suite = {};
  std::string text = {};
  std::string text_filter = {};  // of the whole text
  std::vector<std::string> contexts = {};
  std::vector<std::string> choices = {};
  std::string continuation = {};
  std::string delimiter = " ";
  std::string target = {};               // index of the right choice, or its label
  std::vector<std::string> labels = {};  // of the choices
  // Generation only.
  std::vector<std::string> answers = {};
  std::vector<std::string> stop = {"\n"};
  std::int64_t max_tokens = 48;
  std::int64_t max_inputs = 2000;  // tokens of the text, cut at the left
  std::vector<std::string> metrics = {};
  std::string main = {};  // the metric in the mean over tasks; empty: the first
  // "race": makes text, options and answer from an article with several questions. "squad": one record per question of
  // SQuAD's nested file, with title, context, question and answers.
  std::string prepare = {};
  // Source of the records.
  std::vector<std::string> files = {};  // the first existing one is read
  std::string format = "auto";
  std::vector<std::string> fields = {};
  std::string label_file = {};  // one line per record: its field "label"

  bool is_generation() const { return !answers.empty(); }
  bool is_cloze() const { return choices.empty() && contexts.empty() && !is_generation(); }
};

template <class Visitor>
void fields(Visitor& visit, TaskDescription& t) {
  visit("task", t.task, Field{.help = "its name", .required = true});
  visit("suite", t.suite, Field{.help = "a name for several tasks at once"});
  visit("text", t.text, Field{.help = "the question"});
  visit("text_filter", t.text_filter, Field{.help = "a filter of the whole text"});
  visit("contexts", t.contexts, Field{.help = "one question for each choice"});
  visit("choices", t.choices, Field{.help = "possible continuations"});
  visit("continuation", t.continuation, Field{.help = "what follows the text or each context"});
  visit("delimiter", t.delimiter, Field{.help = "between text and choice, or context and continuation"});
  visit("target", t.target, Field{.help = "index or label of the right choice"});
  visit("labels", t.labels, Field{.help = "labels of the choices"});
  visit("answers", t.answers, Field{.help = "generation: accepted answers"});
  visit("stop", t.stop, Field{.help = "generation: strings before which the text ends"});
  visit("max_tokens", t.max_tokens, Field{.help = "generation: most tokens written", .min = 1, .max = 1 << 20});
  visit("max_inputs", t.max_inputs,
        Field{.help = "generation: tokens of the text, cut at the left", .min = 1, .max = 1 << 24});
  visit("metrics", t.metrics, Field{.help = "acc, acc_norm, acc_bytes; cloze: perplexity, acc; generation: contains"});
  visit("main", t.main, Field{.help = "the metric that enters the mean"});
  visit("prepare", t.prepare, Field{.help = "race or squad"});
  visit("files", t.files, Field{.help = "file names; the first that exists is read", .required = true});
  visit("format", t.format, Field{.help = "auto, json, csv, tsv, lines, parquet"});
  visit("fields", t.fields, Field{.help = "lines: names of a record's lines"});
  visit("label_file", t.label_file, Field{.help = "a file with one label a line"});
}

// A continuation to score.
struct TaskRequest {
  std::string context, continuation;
};

struct TaskItem {
  std::vector<TaskRequest> requests = {};  // one for each choice; cloze and generation: one
  std::size_t gold = 0;
  std::vector<double> characters = {}, bytes = {};  // of each choice
  std::vector<std::string> answers = {};            // generation
};

struct Task {
  TaskDescription description;
  std::filesystem::path file;
  std::string fingerprint;  // SHA-256 over the description and every request
  std::vector<TaskItem> items;

  const std::string& main_metric() const;
};

// Names of the built-in tasks, and the YAML text of one.
std::vector<std::string> task_names();
std::string task_yaml(const std::string& name);
// Expands `--task`: YAML files, names of tasks and of suites. Each task occurs once.
std::vector<std::string> expand_tasks(const std::vector<std::string>& names);

// Reads a task by name or YAML file. Its data files are searched in `folders` and beside a YAML file. At most `limit`
// items; 0: all.
Task load_task(const std::string& name_or_path, const std::vector<std::filesystem::path>& folders, std::size_t limit);

}  // namespace essh
