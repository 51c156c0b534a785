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
  std::vector<MetricValue> metrics;  // in the order of the task
  double main = 0;
};

struct TaskResult {
  std::string task, file, main_metric, fingerprint;
  std::size_t items = 0;
  std::size_t resumed = 0;                 // item and tier pairs found in the journal
  double seconds = 0;                      // without tokenisation
  std::vector<TaskTierResult> tiers = {};  // in the order of the options
};

struct TasksReport {
  std::vector<Tier> tiers;
  std::vector<Index> parameters = {};
  std::vector<TaskResult> tasks = {};
  std::vector<double> means;  // by tier: unweighted mean of the main metrics
  std::string tokenizer_hash = {};
};

inline constexpr const char* kTasksProtocol = "lm-evaluation-harness 0.4.13, zero-shot";

// The items of some tasks as tokens. Models with this tokenizer and end-of-text token share them.
struct EncodedTasks {
  std::string tokenizer_hash = {};
  TokenId eos = 0;
  std::vector<std::vector<EncodedItem>> items = {};  // by task
};

// `most_tokens` as in TasksOptions.
EncodedTasks encode_tasks(std::span<const Task> tasks, const Tokenizer& tokenizer, TokenId eos,
                          std::size_t most_tokens);

// Measures every tier on every task, in one pass over the items. `tokenizer` is the model's, and `encoded` was made
// with it and the model's end-of-text token.
TasksReport measure_tasks(Engine& engine, std::span<const Task> tasks, const EncodedTasks& encoded,
                          const Tokenizer& tokenizer, const TasksOptions& options);

// Metrics of a task from the likelihoods of its items. The error of a perplexity is NaN: see perplexity_errors().
std::vector<MetricValue> metrics_of(const Task& task, std::span<const std::vector<Likelihood>> likelihoods);

Json to_json(const TasksReport& report, const std::string& model, const ResultProvenance& provenance);
// Text table: a row per metric of each task, a column per tier.
std::string to_table(const TasksReport& report);

// SHA-256 over the fingerprints of all tasks.
std::string fingerprint_of(std::span<const Task> tasks);

}  // namespace essh
