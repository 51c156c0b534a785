#include "essh/evaluate/recall.h"

#include <algorithm>
#include <cmath>

#include "essh/base/progress.h"
#include "essh/config/fields.h"
#include "essh/data/loader.h"
#include "essh/model/cost.h"

namespace essh {
namespace {

// Tokens of one pass: enough for full matrix products, with little memory.
constexpr Index kRecallPassTokens = 8192;

// Sums over questions and sequences; counts are exact as doubles.
struct Answers {
  double right = 0, complete = 0, loss = 0;
};

// Question positions of one sequence of a batch.
std::vector<Index> questions_of(const Batch& batch, Index row) {
  std::vector<Index> places;
  for (Index i = 0; i < batch.length; ++i) {
    if (batch.targets[static_cast<std::size_t>(row * batch.length + i)] != kUnlabelled) places.push_back(i);
  }
  return places;
}

double negative_log_likelihood(std::span<const float> logits, std::size_t target, float largest) {
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit - largest));
  return std::log(sum) - static_cast<double>(logits[target] - largest);
}

// Logits are computed at question positions only: the head is a large part of these small models.
Answers answer(Engine& engine, const Tier& tier, const Batch& batch, Outputs& outputs) {
  Answers answers;
  const auto length = static_cast<std::size_t>(batch.length),
             vocabulary = static_cast<std::size_t>(engine.config().vocab_size);
  std::vector<std::vector<Index>> questions;
  for (Index row = 0; row < batch.rows; ++row) questions.push_back(questions_of(batch, row));
  std::vector<Chunk> chunks;
  for (std::size_t row = 0; row < questions.size(); ++row) {
    chunks.push_back({.slot = engine.open(tier),
                      .tokens = std::span(batch.inputs).subspan(row * length, length),
                      .wanted = Wanted::Rows,
                      .rows = questions[row]});
  }
  engine.run(chunks, outputs);
  for (std::size_t row = 0; row < questions.size(); ++row) {
    std::size_t right = 0;
    for (std::size_t q = 0; q < questions[row].size(); ++q) {
      const std::span logits(outputs.entries[row].logits.row(static_cast<Index>(q)), vocabulary);
      const auto best = std::max_element(logits.begin(), logits.end());
      const auto target =
          static_cast<std::size_t>(batch.targets[row * length + static_cast<std::size_t>(questions[row][q])]);
      right += static_cast<std::size_t>(best - logits.begin()) == target;
      answers.loss += negative_log_likelihood(logits, target, *best);
    }
    answers.right += static_cast<double>(right);
    answers.complete += right == questions[row].size() ? 1 : 0;
    engine.close(chunks[row].slot);
  }
  return answers;
}

}  // namespace

RecallReport measure_recall(Engine& engine, const SyntheticTask& task, const RecallOptions& options) {
  if (task.vocab_size() > engine.config().vocab_size) {
    fail(ErrorKind::Usage, "the task has {} token ids, the model {}; was it trained on this task?", task.vocab_size(),
         engine.config().vocab_size);
  }
  const TaskSequences sequences(task, SyntheticTask::Split::Validation, options.seed);
  RecallReport report{.task = task.options(),
                      .samples = options.samples,
                      .questions = options.samples * task.labels(),
                      .chance = task.chance()};
  std::vector<Answers> answers(options.tiers.size());
  Outputs outputs;
  const Index batch_rows = std::max<Index>(1, kRecallPassTokens / sequences.length());
  const auto key = fmt::format("recall {} precision {} task {} seed {}", engine.model().hash(),
                               static_cast<int>(engine.precision()), task.fingerprint(), options.seed);
  if (options.journal != nullptr) options.journal->announce(key);
  Progress progress("evaluate", static_cast<double>(options.samples), "sample");
  for (Index first = 0; first < options.samples; first += batch_rows) {
    const auto batch = read_batch(sequences, first, std::min(batch_rows, options.samples - first));
    for (std::size_t t = 0; t < answers.size(); ++t) {
      const auto& tier = options.tiers[t];
      const auto pass =
          kept_or_measured(options.journal,
                           fmt::format("{} {} sequences {} to {}", key, sizes_of(engine.config(), tier.capacity), first,
                                       first + batch.rows),
                           3, [&] {
                             const auto found = answer(engine, tier, batch, outputs);
                             return std::vector{found.right, found.complete, found.loss};
                           });
      answers[t].right += pass[0];
      answers[t].complete += pass[1];
      answers[t].loss += pass[2];
    }
    progress.update(static_cast<double>(first + batch.rows), "");
  }
  progress.finish();
  const auto questions = static_cast<double>(report.questions);
  for (std::size_t t = 0; t < answers.size(); ++t) {
    report.tiers.push_back({.tier = options.tiers[t],
                            .parameters = cost_of(engine.config(), options.tiers[t].capacity).parameters,
                            .accuracy = answers[t].right / questions,
                            .complete = answers[t].complete / static_cast<double>(options.samples),
                            .nll = answers[t].loss / questions});
  }
  return report;
}

Json to_json(const RecallReport& report, const std::string& model, const ResultProvenance& provenance) {
  Json json = {{"model", model},
               {"task", report.task.name},
               {"length", report.task.length},
               {"symbols", report.task.symbols},
               {"samples", report.samples},
               {"questions", report.questions},
               {"chance", report.chance}};
  if (report.task.name == "mqar") json["pairs"] = report.task.pairs;
  json["results"] = Json::array();
  for (const auto& tier : report.tiers) {
    json["results"].push_back({{"tier", tier.tier.name},
                               {"parameters", tier.parameters},
                               {"accuracy", tier.accuracy},
                               {"complete", tier.complete},
                               {"nll", tier.nll}});
  }
  json["provenance"] = write_fields(provenance);
  return json;
}

}  // namespace essh
