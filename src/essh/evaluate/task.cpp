#include "essh/evaluate/task.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "essh/base/file.h"
#include "essh/base/json.h"
#include "essh/base/sha256.h"
#include "essh/base/utf8.h"
#include "essh/config/fields.h"
#include "essh/config/yaml.h"
#include "essh/data/records.h"
#include "essh/evaluate/task_template.h"
#include "essh/evaluate/task_texts.h"

namespace essh {
namespace {
namespace fs = std::filesystem;

constexpr std::uint64_t kTaskBytes = 1u << 20;
constexpr const char* kOpenBook = "open_book";  // the generation suite; not part of `all`

bool is_file(const std::string& name) {
  return name.ends_with(".yaml") || name.ends_with(".yml");
}

std::string text_of_task(const std::string& name_or_path) {
  return is_file(name_or_path) ? read_text(name_or_path, kTaskBytes) : task_yaml(name_or_path);
}

// One description per source: a source replaces keys of the task.
std::vector<TaskDescription> descriptions(const std::string& name_or_path) {
  auto object = parse_yaml(text_of_task(name_or_path), name_or_path);
  if (!object.is_object()) fail(ErrorKind::BadFile, "{}: expected keys and values", name_or_path);
  Json sources = Json::array({Json::object()});
  if (object.contains("sources")) {
    sources = object["sources"];
    object.erase("sources");
    if (!sources.is_array() || sources.empty()) fail(ErrorKind::BadFile, "{}: sources must be a list", name_or_path);
  }
  std::vector<TaskDescription> list;
  for (const auto& source : sources) {
    if (!source.is_object()) fail(ErrorKind::BadFile, "{}: a source must have keys and values", name_or_path);
    auto merged = object;
    merged.update(source);
    read_fields(list.emplace_back(), merged, name_or_path);
  }
  return list;
}

void check(TaskDescription& t, const std::string& place) {
  if (t.is_generation() ? !t.choices.empty() || !t.contexts.empty() || !t.continuation.empty()
                        : (t.is_cloze() ? t.continuation.empty() : t.target.empty())) {
    fail(ErrorKind::BadFile, "{}: give choices (or contexts) with a target, or a continuation, or answers alone",
         place);
  }
  if (!t.contexts.empty() && (!t.choices.empty() || t.continuation.empty()))
    fail(ErrorKind::BadFile, "{}: contexts need a continuation and no choices", place);
  const auto known = t.is_generation() ? std::vector<std::string>{"contains"}
                     : t.is_cloze()    ? std::vector<std::string>{"perplexity", "acc"}
                                       : std::vector<std::string>{"acc", "acc_norm", "acc_bytes"};
  if (t.metrics.empty())
    t.metrics = t.choices.empty() && t.contexts.empty() ? known : std::vector<std::string>{"acc", "acc_norm"};
  for (const auto& metric : t.metrics) {
    if (std::ranges::find(known, metric) == known.end()) {
      fail(ErrorKind::BadFile, "{}: metrics must be among {}, got {}{}", place, fmt::join(known, ", "),
           in_quotes(metric), suggestion(metric, known));
    }
  }
  if (t.main.empty()) t.main = t.metrics.front();
  if (std::ranges::find(t.metrics, t.main) == t.metrics.end())
    fail(ErrorKind::BadFile, "{}: main must be one of the metrics, got {}", place, in_quotes(t.main));
  if (!t.prepare.empty() && t.prepare != "race" && t.prepare != "squad")
    fail(ErrorKind::BadFile, "{}: prepare must be race or squad, got {}", place, in_quotes(t.prepare));
}

const std::string& string_of(const Json& value, const std::string& place) {
  if (!value.is_string()) fail(ErrorKind::BadFile, "{}: expected a string, got {}", place, to_text(value));
  return value.text();
}

// RACE asks several questions about an article. All but the last are part of the text, with their answers.
Json race_record(const Json& record, const std::string& place) {
  for (const char* key : {"article", "questions", "options", "answers"}) {
    if (!record.contains(key)) fail(ErrorKind::BadFile, "{}: no field \"{}\"", place, key);
  }
  const auto &questions = record["questions"], &options = record["options"], &answers = record["answers"];
  if (!questions.is_array() || !options.is_array() || !answers.is_array() || questions.empty() ||
      options.size() != questions.size() || answers.size() != questions.size())
    fail(ErrorKind::BadFile, "{}: questions, options and answers must be lists of one length", place);
  const auto answer_of = [&](std::size_t q) {
    const auto& letter = string_of(answers[q], place);
    const auto index = letter.size() == 1 ? static_cast<std::size_t>(letter[0] - 'A') : options[q].size();
    if (!options[q].is_array() || index >= options[q].size())
      fail(ErrorKind::BadFile, "{}: the answer {} is none of the options", place, in_quotes(letter));
    return string_of(options[q][index], place);
  };
  auto text = fmt::format("Article: {}\n\n", string_of(record["article"], place));
  const auto last = questions.size() - 1;
  for (std::size_t q = 0; q < last; ++q) {
    const auto& question = string_of(questions[q], place);
    if (question.ends_with("  _  ."))
      text += question.substr(0, question.size() - 5) + answer_of(q) + "\n";
    else
      text += fmt::format("Question: {}\nAnswer: {}\n", question, answer_of(q));
  }
  text += string_of(questions[last], place);
  return {{"text", text}, {"options", options[last]}, {"answer", answers[last]}};
}

// SQuAD's file is one object: articles have paragraphs, paragraphs have questions.
std::vector<Json> squad_records(const std::vector<Json>& files, const std::string& place) {
  std::vector<Json> records;
  const auto list = [&](const Json& object, const char* key) -> const Json& {
    if (!object.is_object() || !object.contains(key) || !object[key].is_array())
      fail(ErrorKind::BadFile, "{}: not in SQuAD's form: no list \"{}\"", place, key);
    return object[key];
  };
  for (const auto& file : files) {
    for (const auto& article : list(file, "data")) {
      for (const auto& paragraph : list(article, "paragraphs")) {
        for (const auto& question : list(paragraph, "qas")) {
          Json record = question;
          for (const auto& [object, key] : {std::pair(&article, "title"), std::pair(&paragraph, "context")}) {
            if (object->contains(key)) record[key] = (*object)[key];
          }
          records.push_back(std::move(record));
        }
      }
    }
  }
  return records;
}

std::size_t gold_of(const TaskDescription& t, const Json& record, std::size_t choices, const std::string& place) {
  const auto target = render(t.target, record, place);
  std::size_t gold = choices;
  if (!t.labels.empty()) {
    const auto labels = render_list(t.labels, record, place);
    gold = static_cast<std::size_t>(std::ranges::find(labels, target) - labels.begin());
  } else {
    const auto end = target.data() + target.size();
    if (const auto [stop, error] = std::from_chars(target.data(), end, gold); error != std::errc() || stop != end)
      gold = choices;
  }
  if (gold >= choices)
    fail(ErrorKind::BadFile, "{}: the target {} is none of {} choices", place, in_quotes(target), choices);
  return gold;
}

double characters(std::string_view text) {
  return static_cast<double>(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string question_of(const TaskDescription& t, const Json& record, const std::string& place) {
  const auto text = render(t.text, record, place);
  return t.text_filter.empty() ? text : render("{{text|" + t.text_filter + "}}", {{"text", text}}, place);
}

TaskItem make_item(const TaskDescription& t, const Json& record, const std::string& place) {
  TaskItem item;
  if (t.is_generation()) {
    item.requests.push_back({question_of(t, record, place), ""});
    item.answers = render_list(t.answers, record, place);
    if (item.answers.empty()) fail(ErrorKind::BadFile, "{}: no answer", place);
    return item;
  }
  if (t.is_cloze()) {
    item.requests.push_back({question_of(t, record, place), render(t.continuation, record, place)});
    return item;
  }
  const bool partial = !t.contexts.empty();
  const auto choices = render_list(partial ? t.contexts : t.choices, record, place);
  const auto common = partial ? render(t.continuation, record, place) : question_of(t, record, place);
  for (const auto& choice : choices) {
    item.requests.push_back(partial ? TaskRequest{choice, t.delimiter + common}
                                    : TaskRequest{common, t.delimiter + choice});
    item.characters.push_back(characters(choice));
    item.bytes.push_back(static_cast<double>(choice.size()));
  }
  item.gold = gold_of(t, record, choices.size(), place);
  return item;
}

// Published sets are often Parquet files with names of their own, such as test-00000-of-00001.parquet.
std::string parquet_remedy(const std::vector<fs::path>& places, const std::vector<std::string>& wanted) {
  const auto lines = std::ranges::find_if(wanted, [](const auto& name) { return name.ends_with(".jsonl"); });
  if (lines == wanted.end()) return "";
  for (const auto& place : places) {
    if (!fs::is_directory(place)) continue;
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(place)) {
      if (entry.path().extension() == ".parquet") found.push_back(entry.path());
    }
    if (found.empty()) continue;
    return fmt::format(
        ", or convert a Parquet file of that folder to JSON lines: python3 -c 'import pandas; "
        "pandas.read_parquet(\"{}\").to_json(\"{}\", orient=\"records\", lines=True)'",
        std::ranges::min(found).string(), (place / *lines).string());
  }
  return "";
}

std::string fingerprint_of(const Task& task) {
  Sha256 hash;
  const auto add = [&](const std::string& text) {
    const std::uint64_t size = text.size();
    hash.update(std::as_bytes(std::span(&size, 1)));
    hash.update(std::as_bytes(std::span(text)));
  };
  add(to_text(write_fields(task.description)));
  for (const auto& item : task.items) {
    add(fmt::format("{}", item.gold));
    for (const auto& request : item.requests) {
      add(request.context);
      add(request.continuation);
    }
    for (const auto& answer : item.answers) add(answer);
  }
  return hash.hex();
}

}  // namespace

const std::string& Task::main_metric() const {
  return description.main;
}

std::vector<std::string> task_names() {
  std::vector<std::string> names;
  for (const auto& [name, text] : kTaskTexts) names.emplace_back(name);
  return names;
}

std::string task_yaml(const std::string& name) {
  for (const auto& [known, text] : kTaskTexts) {
    if (name == known) return text;
  }
  const auto names = task_names();
  fail(ErrorKind::Usage, "no task {}{}; there are {}, and YAML files by their path", in_quotes(name),
       suggestion(name, names), fmt::join(names, ", "));
}

std::vector<std::string> expand_tasks(const std::vector<std::string>& names) {
  std::vector<std::string> tasks;
  const auto add = [&](const std::string& name) {
    if (std::ranges::find(tasks, name) == tasks.end()) tasks.push_back(name);
  };
  for (const auto& name : names) {
    bool suite = false;
    for (const auto& known : is_file(name) ? std::vector<std::string>() : task_names()) {
      const auto own = descriptions(known).front().suite;
      if (name == "all" ? own == kOpenBook : own != name) continue;
      suite = true;
      add(known);
    }
    if (!suite) add(name);
  }
  return tasks;
}

Task load_task(const std::string& name_or_path, const std::vector<fs::path>& folders, std::size_t limit) {
  auto places = folders;
  if (is_file(name_or_path)) places.push_back(fs::path(name_or_path).parent_path());
  if (places.empty()) places.emplace_back();
  Task task;
  std::vector<std::string> wanted;
  fs::path folder;
  for (auto& description : descriptions(name_or_path)) {
    check(description, name_or_path);
    for (const auto& file : description.files) {
      wanted.push_back(file);
      for (const auto& place : places) {
        if (task.file.empty() && fs::exists(place / file)) {
          task.file = place / file;
          task.description = description;
          folder = place;
        }
      }
    }
  }
  if (task.file.empty()) {
    fail(ErrorKind::Usage, "{}: none of its files ({}) is in {}; name the folder with --data{}", name_or_path,
         fmt::join(wanted, ", "), places.front().empty() ? "this folder" : places.front().string(),
         parquet_remedy(places, wanted));
  }
  const auto& t = task.description;
  auto records = read_records(task.file, {.format = t.format, .fields = t.fields});
  if (!t.label_file.empty()) {
    const auto labels = read_lines(folder / t.label_file);
    if (labels.size() != records.size()) {
      fail(ErrorKind::BadFile, "{}: {} labels for {} records", (folder / t.label_file).string(), labels.size(),
           records.size());
    }
    for (std::size_t i = 0; i < records.size(); ++i) records[i]["label"] = labels[i];
  }
  if (t.prepare == "squad") records = squad_records(records, task.file.string());
  if (limit > 0 && records.size() > limit) records.resize(limit);
  for (std::size_t i = 0; i < records.size(); ++i) {
    const auto place = fmt::format("{}: {}: item {}", t.task, task.file.string(), i + 1);
    task.items.push_back(make_item(t, t.prepare == "race" ? race_record(records[i], place) : records[i], place));
  }
  if (task.items.empty()) fail(ErrorKind::BadFile, "{}: no items", task.file.string());
  task.fingerprint = fingerprint_of(task);
  return task;
}

}  // namespace essh
