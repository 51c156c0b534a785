#include "essh/evaluate/classification.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "essh/base/json.h"
#include "essh/base/rng.h"
#include "essh/base/sha256.h"
#include "essh/config/fields.h"
#include "essh/data/document_reader.h"
#include "essh/data/records.h"
#include "essh/train/schedule.h"

namespace essh {
namespace fs = std::filesystem;
namespace {

enum class Split { Train, Test, Unknown };

struct Row {
  std::string name, sequence = {};
  Split split = Split::Unknown;
};

template <class T>
void shuffle(std::vector<T>& values, Rng& rng) {
  for (std::size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[rng.below(i)]);
}

std::string column(const Json& record, std::initializer_list<const char*> names) {
  for (const auto* name : names) {
    if (record.contains(name))
      return record[name].is_string() ? record[name].get<std::string>() : to_text(record[name]);
  }
  return "";
}

void read_table(const fs::path& file, const SetOptions& options, std::vector<Row>& rows) {
  std::size_t number = 0;
  for (const auto& record : read_records(file)) {
    ++number;
    if (!options.set.empty() && column(record, {"set", "dataset"}) != options.set) continue;
    Row row{.name = column(record, {"class", "label"}), .sequence = column(record, {"seq", "sequence"})};
    if (row.name.empty() || row.sequence.empty())
      fail(ErrorKind::BadFile,
           "{}: record {}: needs the columns class (or label) and seq (or sequence); the first row names the columns",
           file.string(), number);
    const auto split = column(record, {"split"});
    if (split == "train")
      row.split = Split::Train;
    else if (split == "test")
      row.split = Split::Test;
    else if (!split.empty())
      fail(ErrorKind::BadFile, "{}: record {}: split must be train or test, got '{}'", file.string(), number, split);
    rows.push_back(std::move(row));
  }
}

void read_fasta(const fs::path& file, std::vector<Row>& rows) {
  const auto reader = open_document_reader(file, CorpusFormat::Fasta, "");
  auto stem = file.stem();
  if (stem.has_extension() && format_of_name(stem) == CorpusFormat::Fasta) stem = stem.stem();
  Block block;
  while (reader->read(block)) {
    decode_block(block, "");
    for (const auto& piece : block.pieces) {
      if (piece.first) rows.push_back({.name = stem.string()});
      rows.back().sequence += std::string_view(block.text).substr(piece.begin, piece.size);
    }
    block.clear();
  }
}

// Draws the test share of each class if no row names its split.
void split_rows(std::vector<Row>& rows, double test_share, const std::string& name) {
  const auto unknown = std::ranges::count_if(rows, [](const Row& row) { return row.split == Split::Unknown; });
  if (unknown == 0) return;
  if (unknown != std::ssize(rows)) fail(ErrorKind::BadFile, "{}: some rows say their split and some do not", name);
  std::map<std::string, std::vector<Row*>> by_class;
  for (auto& row : rows) by_class[row.name].push_back(&row);
  Rng rng(0);
  for (auto& [_, members] : by_class) {
    shuffle(members, rng);
    const auto tests = static_cast<std::size_t>(test_share * static_cast<double>(members.size()) + 0.5);
    for (std::size_t i = 0; i < members.size(); ++i) members[i]->split = i < tests ? Split::Test : Split::Train;
  }
}

LabelledRows rows_of(const std::vector<const Example*>& examples) {
  LabelledRows rows{.sequences = std::ssize(examples)};
  for (const auto* example : examples) rows.length = std::max<Index>(rows.length, std::ssize(example->tokens));
  for (const auto* example : examples) {
    rows.inputs.insert(rows.inputs.end(), example->tokens.begin(), example->tokens.end());
    rows.inputs.resize(static_cast<std::size_t>((std::ssize(rows.labels) + 1) * rows.length), example->tokens.front());
    rows.lengths.push_back(std::ssize(example->tokens));
    rows.labels.push_back(example->label);
  }
  return rows;
}

// The examples [first, first + count) of a list.
std::vector<const Example*> slice_of(const std::vector<const Example*>& examples, std::size_t first,
                                     std::size_t count) {
  return {examples.begin() + static_cast<std::ptrdiff_t>(first),
          examples.begin() + static_cast<std::ptrdiff_t>(std::min(examples.size(), first + count))};
}

double accuracy_of(Classifier& classifier, std::vector<const Example*> examples, std::size_t classes, Index batch) {
  // Sorted by length: little padding.
  std::ranges::stable_sort(examples, {}, [](const Example* e) { return e->tokens.size(); });
  Index right = 0;
  for (std::size_t first = 0; first < examples.size(); first += static_cast<std::size_t>(batch)) {
    const auto some = slice_of(examples, first, static_cast<std::size_t>(batch));
    const auto logits = classifier.logits(rows_of(some));
    for (std::size_t i = 0; i < some.size(); ++i) {
      const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(i * classes);
      right += std::max_element(begin, begin + static_cast<std::ptrdiff_t>(classes)) - begin == some[i]->label;
    }
  }
  return static_cast<double>(right) / static_cast<double>(examples.size());
}

}  // namespace

double ClassificationSet::majority() const {
  std::vector<Index> counts(classes.size());
  for (const auto& example : test) ++counts[static_cast<std::size_t>(example.label)];
  return static_cast<double>(std::ranges::max(counts)) / static_cast<double>(test.size());
}

ClassificationSet read_classification_set(const std::vector<fs::path>& files, const Tokenizer& tokenizer,
                                          const SetOptions& options) {
  ClassificationSet set{.name = options.set};
  std::vector<Row> rows;
  std::string place;
  for (const auto& file : files) {
    place += (place.empty() ? "" : ", ") + file.string();
    if (format_of_name(file) == CorpusFormat::Fasta)
      read_fasta(file, rows);
    else
      read_table(file, options, rows);
  }
  if (set.name.empty()) set.name = files.size() == 1 ? files.front().stem().string() : place;
  if (rows.empty())
    fail(ErrorKind::Usage, "{}: no sequences{}", place, options.set.empty() ? "" : " of set '" + options.set + "'");
  split_rows(rows, options.test_share, place);
  for (const auto& row : rows) set.classes.push_back(row.name);
  std::ranges::sort(set.classes);
  set.classes.erase(std::unique(set.classes.begin(), set.classes.end()), set.classes.end());
  if (set.classes.size() < 2)
    fail(ErrorKind::Usage, "{}: all sequences are of class '{}'; give at least two classes (FASTA: one file each)",
         place, set.classes.front());
  Sha256 hash;
  for (const auto& row : rows) {
    Example example;
    tokenizer.encode(row.sequence, example.tokens, {.parse_special_tokens = false});
    if (example.tokens.empty()) fail(ErrorKind::BadFile, "{}: a sequence of class '{}' is empty", place, row.name);
    if (std::ssize(example.tokens) > options.max_length)
      example.tokens.resize(static_cast<std::size_t>(options.max_length));
    example.label = static_cast<std::int32_t>(std::ranges::lower_bound(set.classes, row.name) - set.classes.begin());
    const std::array<std::int32_t, 3> facts = {example.label, row.split == Split::Test,
                                               static_cast<std::int32_t>(example.tokens.size())};
    hash.update(std::as_bytes(std::span(facts)));
    hash.update(std::as_bytes(std::span(example.tokens)));
    (row.split == Split::Test ? set.test : set.train).push_back(std::move(example));
  }
  if (set.train.size() < 2 || set.test.empty())
    fail(ErrorKind::Usage, "{}: {} sequences to train on and {} to test on; both are needed", place, set.train.size(),
         set.test.size());
  set.fingerprint = hash.hex();
  return set;
}

FineTuned fine_tune(const ModelConfig& config, const Parameters<float>& weights, const ClassificationSet& set,
                    const FineTuneOptions& options, Stream& stream, const std::function<void(Index)>& after_epoch) {
  Rng rng(options.seed);
  std::vector<const Example*> train, validation, test;
  for (const auto& example : set.train) train.push_back(&example);
  for (const auto& example : set.test) test.push_back(&example);
  shuffle(train, rng);
  const auto held_out = std::clamp<std::size_t>(
      static_cast<std::size_t>(options.validation_share * static_cast<double>(train.size()) + 0.5), 1,
      train.size() - 1);
  validation.assign(train.begin(), train.begin() + static_cast<std::ptrdiff_t>(held_out));
  train.erase(train.begin(), train.begin() + static_cast<std::ptrdiff_t>(held_out));

  const auto batch = static_cast<std::size_t>(options.batch);
  const Index per_epoch = static_cast<Index>((train.size() + batch - 1) / batch);
  const Schedule schedule{.peak = options.rate, .warmup = 0.1, .floor = 0, .steps = per_epoch * options.epochs};
  Classifier classifier(
      config, weights,
      {.classes = std::ssize(set.classes), .pooling = options.pooling, .optimizer = {}, .seed = options.seed}, stream);
  FineTuned result;
  Index step = 0;
  for (Index epoch = 1; epoch <= options.epochs; ++epoch) {
    shuffle(train, rng);
    for (std::size_t first = 0; first < train.size(); first += batch)
      classifier.learn(rows_of(slice_of(train, first, batch)), schedule.rate(step++));
    const double found = accuracy_of(classifier, validation, set.classes.size(), options.batch);
    result.validation_by_epoch.push_back(found);
    if (epoch == 1 || found > result.validation) {
      result.best_epoch = epoch;
      result.validation = found;
      result.test = accuracy_of(classifier, test, set.classes.size(), options.batch);
    }
    after_epoch(epoch);
  }
  return result;
}

template <class Visitor>
void fields(Visitor& visit, FineTuned& r) {
  visit("best_epoch", r.best_epoch, Field{.min = 1, .required = true});
  visit("validation", r.validation, Field{.min = 0, .max = 1, .required = true});
  visit("test", r.test, Field{.min = 0, .max = 1, .required = true});
  visit("validation_by_epoch", r.validation_by_epoch, Field{.required = true});
}

Json to_json(const FineTuned& result) {
  return write_fields(result);
}

FineTuned fine_tuned_from(const Json& json) {
  FineTuned result;
  read_fields(result, json, "a result in the journal");
  return result;
}

}  // namespace essh
