#include "essh/evaluate/tasks.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "essh/base/json.h"
#include "essh/base/progress.h"
#include "essh/base/sha256.h"
#include "essh/config/fields.h"
#include "essh/evaluate/greedy_generation.h"
#include "essh/evaluate/harness_statistics.h"
#include "essh/model/cost.h"

namespace essh {
namespace {

// Tokens and sequences of one pass: enough for full matrix products, few enough for little state memory.
constexpr std::size_t kTaskPassTokens = 8192, kPassRequests = 256;

// Index of the largest value; of equal ones, the first.
std::size_t argmax(std::span<const double> values) {
  return static_cast<std::size_t>(std::ranges::max_element(values) - values.begin());
}

// 1 for each item whose right choice has the largest log-likelihood per unit of length, else 0. Without `length`, the
// unit is the whole choice.
std::vector<double> hits(const Task& task, std::span<const std::vector<Likelihood>> likelihoods,
                         const std::vector<double> TaskItem::*length) {
  std::vector<double> hits;
  for (std::size_t i = 0; i < task.items.size(); ++i) {
    std::vector<double> scores;
    for (std::size_t c = 0; c < likelihoods[i].size(); ++c) {
      const double divisor = length == nullptr ? 1.0 : (task.items[i].*length)[c];
      scores.push_back(likelihoods[i][c].log_likelihood / divisor);
    }
    hits.push_back(argmax(scores) == task.items[i].gold ? 1.0 : 0.0);
  }
  return hits;
}

std::vector<double> first_log_likelihoods(std::span<const std::vector<Likelihood>> likelihoods) {
  std::vector<double> values;
  for (const auto& item : likelihoods) values.push_back(item.front().log_likelihood);
  return values;
}

std::string journal_key(const Engine& engine, const Task& task, const Tokenizer& tokenizer, const Tier& tier,
                        const TasksOptions& options) {
  const Json key = {engine.model().hash(),  task.fingerprint,  tokenizer.hash(),
                    tier.capacity.channels, tier.capacity.ffn, static_cast<int>(engine.precision()),
                    options.most_tokens};
  return sha256_of_text(to_text(key)).substr(0, 24);
}

EncodedRequest encode_prompt(const TaskDescription& task, const std::string& text, const Tokenizer& tokenizer,
                             TokenId eos, std::size_t most_tokens) {
  EncodedRequest request{.context = tokenizer.encode(text, {.parse_special_tokens = false}), .continuation = {}};
  auto most = static_cast<std::size_t>(task.max_inputs);
  if (most_tokens > 0) most = std::min(most, most_tokens);
  auto& tokens = request.context;
  if (tokens.size() > most) tokens.erase(tokens.begin(), tokens.end() - static_cast<std::ptrdiff_t>(most));
  if (tokens.empty()) tokens.push_back(eos);
  return request;
}

std::string place_of(const Task& task, std::size_t item) {
  return fmt::format("{}: item {}", task.description.task, item + 1);
}

// One task under measurement: its items as tokens and the results so far, by tier.
class RunningTask {
 public:
  RunningTask(Engine& engine, const Task& task, std::span<const EncodedItem> items, const Tokenizer& tokenizer,
              const TasksOptions& options)
      : engine_(engine),
        task_(task),
        tokenizer_(tokenizer),
        options_(options),
        items_(items),
        known_(options.tiers.size()) {
    for (std::size_t i = 0; i < items_.size(); ++i) {
      for (const auto& request : items_[i]) {
        engine.model().check_tokens(request.context, place_of(task, i));
        engine.model().check_tokens(request.continuation, place_of(task, i));
      }
    }
    for (std::size_t t = 0; t < options.tiers.size(); ++t) {
      keys_.push_back(journal_key(engine, task, tokenizer, options.tiers[t], options));
      known_[t].resize(items_.size());
      for (std::size_t i = 0; i < items_.size() && options.journal != nullptr; ++i) {
        const auto* found = options.journal->find(keys_[t], i);
        if (found == nullptr || found->size() != items_[i].size()) continue;
        known_[t][i] = *found;
        ++resumed_;
      }
    }
  }

  double tokens() const {
    std::size_t sum = 0;
    for (const auto& known : known_) {
      for (std::size_t i = 0; i < items_.size(); ++i) sum += known[i].empty() ? pass_tokens(items_[i]) : 0;
    }
    return static_cast<double>(sum);
  }

  template <class Done>
  void run(const Done& done) {
    for (std::size_t first = 0; first < items_.size();) {
      std::size_t end = first, tokens = 0, requests = 0;
      while (end < items_.size() && (end == first || (tokens < kTaskPassTokens && requests < kPassRequests))) {
        tokens += pass_tokens(items_[end]);
        requests += items_[end].size();
        ++end;
      }
      for (std::size_t t = 0; t < known_.size(); ++t) done(run(t, first, end), options_.tiers[t].name);
      if (options_.journal != nullptr) options_.journal->sync();
      first = end;
    }
  }

  const std::vector<std::vector<Likelihood>>& likelihoods(std::size_t tier) const { return known_[tier]; }
  std::size_t resumed() const { return resumed_; }

 private:
  // Measures the unknown ones of items [first, end). Returns the tokens of that pass.
  double run(std::size_t t, std::size_t first, std::size_t end) {
    std::vector<std::size_t> indices;
    std::vector<EncodedItem> wanted;
    std::size_t tokens = 0;
    for (std::size_t i = first; i < end; ++i) {
      if (!known_[t][i].empty()) continue;
      indices.push_back(i);
      wanted.push_back(items_[i]);
      tokens += pass_tokens(items_[i]);
    }
    if (wanted.empty()) return 0;
    std::vector<Json> details(indices.size(), Json::object());
    auto found = task_.description.is_generation()
                     ? answer(t, indices, details)
                     : measure_likelihoods(engine_, options_.tiers[t], wanted, task_.description.is_cloze());
    for (std::size_t k = 0; k < indices.size(); ++k) {
      for (const auto& one : found[k]) {
        if (!std::isfinite(one.log_likelihood)) {
          fail(ErrorKind::BadFile, "{}: item {}: tier {} gives a likelihood that is not finite", task_.description.task,
               indices[k] + 1, options_.tiers[t].name);
        }
      }
      if (options_.journal != nullptr) {
        details[k].update({{"task", task_.description.task}, {"tier", options_.tiers[t].name}});
        if (task_.items[indices[k]].answers.empty()) details[k]["gold"] = task_.items[indices[k]].gold;
        options_.journal->add(keys_[t], indices[k], found[k], std::move(details[k]));
      }
      known_[t][indices[k]] = std::move(found[k]);
    }
    return static_cast<double>(tokens);
  }

  // Generated answers of items. The journal keeps a hit as a greedy continuation.
  std::vector<std::vector<Likelihood>> answer(std::size_t t, const std::vector<std::size_t>& indices,
                                              std::vector<Json>& details) {
    std::vector<std::vector<TokenId>> prompts;
    for (const auto i : indices) prompts.push_back(items_[i].front().context);
    const auto texts = generate_greedily(engine_, options_.tiers[t], prompts, tokenizer_,
                                         {.max_tokens = task_.description.max_tokens, .stop = task_.description.stop});
    std::vector<std::vector<Likelihood>> found;
    for (std::size_t k = 0; k < indices.size(); ++k) {
      found.push_back({{.greedy = contains_answer(texts[k], task_.items[indices[k]].answers)}});
      details[k]["generated"] = texts[k];
    }
    return found;
  }

  Engine& engine_;
  const Task& task_;
  const Tokenizer& tokenizer_;
  const TasksOptions& options_;
  std::span<const EncodedItem> items_;
  std::vector<std::string> keys_;
  std::vector<std::vector<std::vector<Likelihood>>> known_;  // by tier and item; empty: not measured yet
  std::size_t resumed_ = 0;
};

void add_perplexity_errors(TaskResult& result, const RunningTask& running, const TasksOptions& options) {
  std::vector<std::vector<double>> series;
  for (std::size_t t = 0; t < options.tiers.size(); ++t)
    series.push_back(first_log_likelihoods(running.likelihoods(t)));
  const auto errors = perplexity_errors(series, options.bootstrap, options.threads);
  for (std::size_t t = 0; t < errors.size(); ++t) {
    for (auto& metric : result.tiers[t].metrics) {
      if (metric.name == "perplexity") metric.error = errors[t];
    }
  }
}

}  // namespace

std::vector<MetricValue> metrics_of(const Task& task, std::span<const std::vector<Likelihood>> likelihoods) {
  std::vector<MetricValue> metrics;
  for (const auto& name : task.description.metrics) {
    if (name == "perplexity") {
      metrics.push_back(
          {name, perplexity_of(first_log_likelihoods(likelihoods)), std::numeric_limits<double>::quiet_NaN()});
      continue;
    }
    std::vector<double> values;
    if (task.description.is_cloze() || task.description.is_generation()) {
      for (const auto& item : likelihoods) values.push_back(item.front().greedy ? 1.0 : 0.0);
    } else {
      values = hits(task, likelihoods,
                    name == "acc" ? nullptr : (name == "acc_norm" ? &TaskItem::characters : &TaskItem::bytes));
    }
    metrics.push_back({name, mean_of(values), standard_error(values)});
  }
  return metrics;
}

std::string fingerprint_of(std::span<const Task> tasks) {
  std::string all;
  for (const auto& task : tasks) all += task.fingerprint;
  return sha256_of_text(all);
}

EncodedTasks encode_tasks(std::span<const Task> tasks, const Tokenizer& tokenizer, TokenId eos,
                          std::size_t most_tokens) {
  EncodedTasks encoded{.tokenizer_hash = tokenizer.hash(), .eos = eos};
  for (const auto& task : tasks) {
    auto& items = encoded.items.emplace_back(task.items.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
      for (const auto& request : task.items[i].requests) {
        if (task.description.is_generation())
          items[i].push_back(encode_prompt(task.description, request.context, tokenizer, eos, most_tokens));
        else
          items[i].push_back(encode_request(request, tokenizer, eos, most_tokens, place_of(task, i)));
      }
    }
  }
  return encoded;
}

TasksReport measure_tasks(Engine& engine, std::span<const Task> tasks, const EncodedTasks& encoded,
                          const Tokenizer& tokenizer, const TasksOptions& options) {
  TasksReport report{.tiers = options.tiers,
                     .means = std::vector<double>(options.tiers.size(), 0),
                     .tokenizer_hash = tokenizer.hash()};
  for (const auto& tier : options.tiers)
    report.parameters.push_back(cost_of(engine.config(), tier.capacity).parameters);
  for (std::size_t n = 0; n < tasks.size(); ++n) {
    const auto& task = tasks[n];
    const auto begin = std::chrono::steady_clock::now();
    RunningTask running(engine, task, encoded.items[n], tokenizer, options);
    Progress progress(task.description.task, running.tokens(), "tok");
    double done = 0;
    running.run([&](double tokens, const std::string& tier) { progress.update(done += tokens, tier); });
    progress.finish();
    auto& result = report.tasks.emplace_back(TaskResult{.task = task.description.task,
                                                        .file = task.file.string(),
                                                        .main_metric = task.description.main,
                                                        .fingerprint = task.fingerprint,
                                                        .items = task.items.size(),
                                                        .resumed = running.resumed()});
    for (std::size_t t = 0; t < options.tiers.size(); ++t) {
      auto& tier = result.tiers.emplace_back();
      tier.metrics = metrics_of(task, running.likelihoods(t));
      for (const auto& metric : tier.metrics)
        tier.main = metric.name == task.description.main ? metric.value : tier.main;
      report.means[t] += tier.main / static_cast<double>(tasks.size());
    }
    if (task.description.is_cloze()) add_perplexity_errors(result, running, options);
    result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  return report;
}

Json to_json(const TasksReport& report, const std::string& model, const ResultProvenance& provenance) {
  Json tasks = Json::array(), means = Json::array();
  for (const auto& task : report.tasks) {
    Json results = Json::array();
    for (std::size_t t = 0; t < report.tiers.size(); ++t) {
      Json result = {{"tier", report.tiers[t].name}, {"parameters", report.parameters[t]}};
      for (const auto& metric : task.tiers[t].metrics) {
        result[metric.name] = metric.value;
        result[metric.name + "_stderr"] = metric.error;
      }
      results.push_back(std::move(result));
    }
    tasks.push_back({{"task", task.task},
                     {"file", task.file},
                     {"items", task.items},
                     {"resumed", task.resumed},
                     {"main", task.main_metric},
                     {"data_fingerprint", task.fingerprint},
                     {"seconds", task.seconds},
                     {"results", std::move(results)}});
  }
  for (std::size_t t = 0; t < report.tiers.size(); ++t)
    means.push_back({{"tier", report.tiers[t].name}, {"mean", report.means[t]}});
  return {{"model", model},
          {"protocol", kTasksProtocol},
          {"tokenizer_hash", report.tokenizer_hash},
          {"tasks", std::move(tasks)},
          {"means", std::move(means)},
          {"provenance", write_fields(provenance)}};
}

std::string to_table(const TasksReport& report) {
  std::vector<std::vector<std::string>> rows = {{"task", "metric"}};
  for (const auto& tier : report.tiers) rows.front().push_back(tier.name);
  for (const auto& task : report.tasks) {
    for (std::size_t m = 0; m < task.tiers.front().metrics.size(); ++m) {
      const auto& name = task.tiers.front().metrics[m].name;
      auto& row = rows.emplace_back();
      row = {m == 0 ? task.task : "", name + (name == task.main_metric ? " *" : "")};
      for (const auto& tier : task.tiers) {
        const auto& metric = tier.metrics[m];
        row.push_back(std::isfinite(metric.error) ? fmt::format("{:.4f} +- {:.4f}", metric.value, metric.error)
                                                  : fmt::format("{:.4f}", metric.value));
      }
    }
  }
  auto& last = rows.emplace_back();
  last = {"mean", "of *"};
  for (const double mean : report.means) last.push_back(fmt::format("{:.4f}", mean));
  std::string text;
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) {
      std::size_t width = 0;
      for (const auto& other : rows) width = std::max(width, other[c].size());
      text += c < 2 ? fmt::format("{:<{}}", row[c], width + 1) : fmt::format(" {:>{}}", row[c], width + 1);
    }
    text += "\n";
  }
  return text;
}

}  // namespace essh
