#pragma once
#include <span>
#include <string>
#include <vector>

#include "essh/base/json_fwd.h"
#include "essh/evaluate/likelihood.h"
#include "essh/evaluate/result_provenance.h"
#include "essh/evaluate/score_journal.h"
#include "essh/evaluate/task.h"

namespace essh {

struct TasksOptions {
  std::vector<Tier> tiers;
  std::size_t most_tokens = 0;  // inputs of a request, cut at the left; 0: no limit
  int bootstrap = 100'000;      // resamples for the error of a perplexity; 0: none
  int threads = 1;              // for the resamples
  ScoreJournal* journal = nullptr;
};

struct MetricValue {
  std::string name;
  double value = 0;
  double error = 0;  // standard error; NaN: unknown
};

struct TaskTierResult {
  std::vector<MetricValue> metrics;  // as the task lists them
  double main = 0;
};

struct TaskResult {
  std::string task, file, main_metric, fingerprint;
  std::size_t items = 0;
  std::size_t resumed = 0;  // item and tier pairs found in the journal
  double seconds = 0;
  std::vector<TaskTierResult> tiers = {};  // in the order of the options
};

struct TasksReport {
  std::vector<Tier> tiers;
  std::vector<Index> parameters = {};
  std::vector<TaskResult> tasks = {};
  std::vector<double> means;  // of the main metrics, unweighted, tier by tier
  std::string tokenizer_hash = {};
};

inline constexpr const char* kTasksProtocol = "lm-evaluation-harness 0.4.13, zero-shot";

// Every tier on every task, in one pass over the items. `tokenizer` is the model's.
TasksReport measure_tasks(Engine& engine, std::span<const Task> tasks, const Tokenizer& tokenizer,
                          const TasksOptions& options);

// Metrics of a task from the likelihoods of its items; the error of a perplexity is left to perplexity_errors().
std::vector<MetricValue> metrics_of(const Task& task, std::span<const std::vector<Likelihood>> likelihoods);

Json to_json(const TasksReport& report, const std::string& model, const ResultProvenance& provenance);
// A line for each tier and a column for each metric, as text.
std::string to_table(const TasksReport& report);

// SHA-256 over the fingerprints of all tasks.
std::string fingerprint_of(std::span<const Task> tasks);

}  // namespace essh
