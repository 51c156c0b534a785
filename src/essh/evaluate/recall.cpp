#include "essh/evaluate/recall.h"

#include <algorithm>
#include <cmath>

#include "essh/base/json.h"
#include "essh/base/progress.h"
#include "essh/data/loader.h"
#include "essh/model/cost.h"

namespace essh {
namespace {

// Tokens of one pass, and logits held at once: full matrix products, little memory.
constexpr Index kPassTokens = 8192;
constexpr Index kLogits = Index{4} << 20;

struct Answers {
  Index right = 0, complete = 0;
  double loss = 0;
};

// Places in a batch at which something is asked.
std::vector<std::size_t> questions_of(const Batch& batch) {
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < batch.targets.size(); ++i) {
    if (batch.targets[i] != kUnlabelled) places.push_back(i);
  }
  return places;
}

double negative_log_likelihood(std::span<const float> logits, std::size_t target, float largest) {
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit - largest));
  return std::log(sum) - static_cast<double>(logits[target] - largest);
}

// Counts the answers among logits of consecutive questions.
class Marker {
 public:
  Marker(const Batch& batch, const std::vector<std::size_t>& questions, Answers& answers)
      : batch_(batch),
        questions_(questions),
        each_(questions.size() / static_cast<std::size_t>(batch.rows)),
        answers_(answers) {}

  void mark(std::size_t question, std::span<const float> logits) {
    const auto best = std::max_element(logits.begin(), logits.end());
    const auto target = static_cast<std::size_t>(batch_.targets[questions_[question]]);
    const bool right = static_cast<std::size_t>(best - logits.begin()) == target;
    answers_.right += right;
    answers_.loss += negative_log_likelihood(logits, target, *best);
    right_in_row_ = question % each_ == 0 ? right : right_in_row_ + right;
    answers_.complete += question % each_ == each_ - 1 && right_in_row_ == each_;
  }

 private:
  const Batch& batch_;
  const std::vector<std::size_t>& questions_;
  std::size_t each_;  // questions of a sequence
  std::size_t right_in_row_ = 0;
  Answers& answers_;
};

// The head is a large part of so small a model: it sees only the places at which something is asked.
void answer(const Runner& runner, const Pass& pass, const Batch& batch, const std::vector<std::size_t>& questions,
            Answers& answers) {
  pass.arena.release();
  const auto inputs = pass.arena.vector<std::int32_t>(pass.tokens());
  upload(pass.stream, batch.inputs, inputs);
  Marker marker(batch, questions, answers);
  runner.with(pass.stream, [&](const auto& model, const auto& weights) {
    const auto states = model.forward(pass, weights, inputs, nullptr);
    using T = std::remove_cvref_t<decltype(*states.data)>;
    const auto width = static_cast<std::size_t>(states.cols),
               vocabulary = static_cast<std::size_t>(runner.config().vocab_size);
    std::vector<T> all(batch.inputs.size() * width);
    download(pass.stream, Vector<const T>{states.data, std::ssize(all)}, all);

    const auto chunk = std::min(questions.size(), std::max<std::size_t>(16, kLogits / vocabulary));
    const auto asked = pass.arena.template matrix<T>(static_cast<Index>(chunk), states.cols);
    const auto logits = pass.arena.template matrix<float>(static_cast<Index>(chunk), runner.config().vocab_size);
    std::vector<T> gathered;
    std::vector<float> scores;
    for (std::size_t first = 0; first < questions.size(); first += chunk) {
      const auto count = std::min(chunk, questions.size() - first);
      gathered.clear();
      for (std::size_t q = first; q < first + count; ++q) {
        const auto* state = all.data() + questions[q] * width;
        gathered.insert(gathered.end(), state, state + width);
      }
      const auto rows = static_cast<Index>(count);
      upload(pass.stream, gathered, Vector<T>{asked.data, std::ssize(gathered)});
      model.head(pass, weights, asked.top(rows), logits.top(rows));
      scores.resize(count * vocabulary);
      download(pass.stream, Vector<const float>{logits.data, std::ssize(scores)}, scores);
      for (std::size_t q = 0; q < count; ++q)
        marker.mark(first + q, std::span(scores).subspan(q * vocabulary, vocabulary));
    }
  });
}

}  // namespace

RecallReport measure_recall(const Runner& runner, Stream& stream, const SyntheticTask& task,
                            const RecallOptions& options) {
  if (task.vocab_size() > runner.config().vocab_size) {
    fail(ErrorKind::Usage, "the task has {} token ids, the model {}; was it trained on this task?", task.vocab_size(),
         runner.config().vocab_size);
  }
  const TaskSequences sequences(task, SyntheticTask::Split::Validation, options.seed);
  RecallReport report{.task = task.options(),
                      .samples = options.samples,
                      .questions = options.samples * task.labels(),
                      .chance = task.chance()};
  std::vector<Answers> answers(options.tiers.size());
  Arena arena(stream.device());
  const Index batch_rows = std::max<Index>(1, kPassTokens / sequences.length());
  Progress progress("evaluate", static_cast<double>(options.samples), "sample");
  for (Index first = 0; first < options.samples; first += batch_rows) {
    const auto batch = read_batch(sequences, first, std::min(batch_rows, options.samples - first));
    const auto questions = questions_of(batch);
    for (std::size_t t = 0; t < answers.size(); ++t) {
      answer(runner,
             {.stream = stream,
              .arena = arena,
              .capacity = options.tiers[t].capacity,
              .sequences = batch.rows,
              .length = batch.length},
             batch, questions, answers[t]);
    }
    progress.update(static_cast<double>(first + batch.rows), "");
  }
  progress.finish();
  const auto questions = static_cast<double>(report.questions);
  for (std::size_t t = 0; t < answers.size(); ++t) {
    report.tiers.push_back({.tier = options.tiers[t],
                            .parameters = cost_of(runner.config(), options.tiers[t].capacity).parameters,
                            .accuracy = static_cast<double>(answers[t].right) / questions,
                            .complete = static_cast<double>(answers[t].complete) / static_cast<double>(options.samples),
                            .nll = answers[t].loss / questions});
  }
  return report;
}

Json to_json(const RecallReport& report, const std::string& model) {
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
  return json;
}

}  // namespace essh
