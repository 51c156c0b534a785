#pragma once
#include <vector>

#include "essh/base/json_fwd.h"
#include "essh/data/synthetic_task.h"
#include "essh/decode/engine.h"
#include "essh/evaluate/result_journal.h"
#include "essh/evaluate/result_provenance.h"

namespace essh {

struct RecallOptions {
  std::vector<Tier> tiers = {};
  Index samples = 1024;
  std::uint64_t seed = 0;
  ResultJournal* journal = nullptr;  // keeps the answers of finished passes
};

struct TierRecall {
  Tier tier;
  Index parameters = 0;
  double accuracy = 0;  // share of the questions whose answer has the largest logit
  double complete = 0;  // share of the sequences with every answer right
  double nll = 0;       // mean over the questions, in nats
};

struct RecallReport {
  TaskOptions task = {};
  Index samples = 0;
  Index questions = 0;  // in all samples
  double chance = 0;    // accuracy of guessing
  std::vector<TierRecall> tiers = {};
};

// Measures the first `samples` held-out sequences of a task. The model's vocabulary must contain the task's.
RecallReport measure_recall(Engine& engine, const SyntheticTask& task, const RecallOptions& options);

// {"model", "task", "length", "pairs", "symbols", "samples", "questions", "chance",
//  "results": [{"tier", "parameters", "accuracy", "complete", "nll"}], "provenance"}; "pairs" of mqar only.
Json to_json(const RecallReport& report, const std::string& model, const ResultProvenance& provenance);

}  // namespace essh
