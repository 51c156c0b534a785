#include "essh/evaluate/throughput.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <set>

#include "essh/base/rng.h"
#include "essh/kernels/clear.h"
#include "essh/model/initialise.h"
#include "essh/train/master_weights.h"
#include "essh/train/objective.h"
#include "essh/train/stage.h"

namespace essh {
namespace {

using Clock = std::chrono::steady_clock;

TokenRows random_rows(Index sequences, Index length, Index vocabulary, std::uint64_t seed) {
  Rng rng(seed);
  TokenRows rows{.sequences = sequences, .length = length, .inputs = {}, .targets = {}};
  for (Index i = 0; i < rows.tokens(); ++i) {
    rows.inputs.push_back(static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(vocabulary))));
    rows.targets.push_back(static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(vocabulary))));
  }
  return rows;
}

template <class T>
TrainingRates train(const ModelConfig& config, Stream& stream, const TrainingBench& bench) {
  const Model<T> model(config);
  const auto& layout = model.layout();
  MasterWeights<T> weights(layout, stream);
  {
    Parameters<float> initial(config);
    initialise(initial, config, kThroughputSeed);
    weights.set({initial.data(), static_cast<std::size_t>(layout.size())});
  }
  const Array<float> gradient(stream.device(), layout.size(), "gradients");
  const Array<double> totals(stream.device(), 2 * kLossTotals + 1, "losses"),
      squares(stream.device(), config.num_hidden_layers * config.intermediate_size, "squared activations");
  clear(stream, squares.view());
  const OptimizerRecipe& recipe = bench.optimizer;
  const auto alone = comm::make_single_group();
  Shards shards(layout, *alone, stream);
  const auto made = make_optimizer(model, recipe, DecayGroups::Pretraining, std::vector<bool>(layout.tensors().size()),
                                   shards, stream);
  Optimizer& optimizer = *made;
  Objective<T> objective(model, stream, bench.loss_rows);
  const auto full = full_capacity(config);
  Recipe pretraining{.model = {}, .data = {}, .optimizer = recipe, .elastic = bench.elastic, .run = {}, .refine = {}};
  pretraining.run.seed = bench.seed;
  const auto stage = bench.refinement ? make_refinement(pretraining, config) : make_pretraining(pretraining, config);
  const double scale = 1.0 / static_cast<double>(bench.micro_batch * bench.context * bench.accumulation);
  const Gradients<T> gradients{&layout, gradient.data()};
  const auto unit_squares = dense(squares.data(), config.num_hidden_layers, config.intermediate_size);

  const auto passes = [&](const PlacedRows& rows, const MicroBatchPlan& plan) {
    Teacher<T> teacher{.model = &model, .weights = &weights.weights()};
    if (plan.full)
      objective.learn(weights.weights(), gradients, rows, full, {.scale = scale}, nullptr,
                      {.totals = totals.view(0, kLossTotals),
                       .squares = unit_squares,
                       .hidden = plan.taught() ? &teacher.hidden : nullptr});
    if (plan.reduced) {
      if (plan.taught() && !plan.full) teacher.hidden = objective.observe(model, weights.weights(), rows, full);
      auto counts = *plan.reduced;
      counts.scale = scale;
      objective.learn(weights.weights(), gradients, rows, capacity_at(config, plan.budget), counts,
                      plan.taught() ? &teacher : nullptr, {.totals = totals.view(kLossTotals, kLossTotals)});
    }
  };
  std::map<double, Recording> recordings;
  const auto micro_batch = [&](Index i, const MicroBatchPlan& plan) {
    const auto rows = objective.place(
        random_rows(bench.micro_batch, bench.context, config.vocab_size, static_cast<std::uint64_t>(i)));
    recordings[plan.budget].run(stream, [&] { passes(rows, plan); });
    objective.release();
  };
  const auto budgets_of = [&](int step) { return stage->budgets(step, INFINITY, bench.accumulation); };
  TrainingRates result;
  // Every capacity runs a few times before timing: its products are autotuned, its launches recorded.
  std::set<double> met;
  for (int step = 0; step < bench.warmup + bench.steps; ++step) {
    for (const double budget : budgets_of(step)) met.insert(budget);
  }
  for (const double budget : met) {
    for (int i = 0; i <= Recording::kEager; ++i) micro_batch(0, stage->plan(budget));
  }
  for (int step = 0; step < bench.warmup + bench.steps; ++step) {
    const auto budgets = budgets_of(step);
    stream.wait();
    const auto start = Clock::now();
    clear(stream, gradient.view());
    clear(stream, totals.view());
    for (Index i = 0; i < bench.accumulation; ++i) micro_batch(i, stage->plan(budgets[static_cast<std::size_t>(i)]));
    optimizer.add_squares(gradient.view(), totals.data() + 2 * kLossTotals);
    std::vector<double> sums(static_cast<std::size_t>(totals.size()));
    download(stream, totals.view(), sums);
    optimizer.step(objective.arena(), weights.values(), weights.rounded(), gradient.view(), 1e-4,
                   clip_factor(std::sqrt(sums.back()), recipe.clip));
    stream.wait();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (step >= bench.warmup) {
      result.rates.samples.push_back(static_cast<double>(bench.micro_batch * bench.context * bench.accumulation) /
                                     seconds);
      for (const double budget : budgets) {
        ++result.micro_batches[budget];
        result.teacher_passes += stage->plan(budget).taught();
      }
    }
    result.loss = sums[0] / std::max(1.0, sums[2]);
  }
  if (bench.profile) {
    ProfiledScope profile(stream);
    // One step of the mixture; for a single capacity one micro-batch is enough.
    const auto budgets = budgets_of(0);
    for (Index i = 0; i < (met.size() > 1 ? bench.accumulation : 1); ++i)
      micro_batch(i, stage->plan(budgets[static_cast<std::size_t>(i)]));
    result.profile = profile.lines();
  }
  for (const auto& spec : layout.tensors()) {
    if (spec.is_matrix()) result.flops_per_token += 6.0 * static_cast<double>(spec.rows * spec.cols);
  }
  result.state_bytes = static_cast<std::size_t>(layout.size()) * (4 * sizeof(float) + (sizeof(T) < 4 ? sizeof(T) : 0));
  result.activation_bytes = objective.memory();
  return result;
}

}  // namespace

double Rates::mean() const {
  return std::accumulate(samples.begin(), samples.end(), 0.0) / static_cast<double>(samples.size());
}

double Rates::deviation() const {
  double squares = 0;
  for (const double sample : samples) squares += (sample - mean()) * (sample - mean());
  return samples.size() > 1 ? std::sqrt(squares / static_cast<double>(samples.size() - 1)) : 0;
}

TrainingRates measure_training(const ModelConfig& config, Stream& stream, Precision precision,
                               const TrainingBench& bench) {
  const bool half = precision_on(stream.device(), precision) == Precision::BFloat16;
  return half ? train<BFloat16>(config, stream, bench) : train<float>(config, stream, bench);
}

PrefillRates measure_prefill(const StoredModel& model, const Tier& tier, Stream& stream, EngineOptions engine_options,
                             const PrefillBench& bench) {
  const auto rows = random_rows(1, bench.depth + bench.tokens, model.config().vocab_size, kThroughputSeed);
  const auto tokens = std::span(rows.inputs).subspan(static_cast<std::size_t>(bench.depth));
  engine_options.piece = bench.piece;
  Engine engine(model, stream, engine_options);
  const Slot begun = engine.open(tier);
  if (bench.depth > 0) {
    const Chunk before{.slot = begun,
                       .tokens = std::span(rows.inputs).first(static_cast<std::size_t>(bench.depth)),
                       .wanted = Wanted::Nothing};
    engine.run({&before, 1});
  }
  Outputs outputs;
  // An idle GPU takes far longer than a short prompt to reach its clock.
  constexpr double kWarmSeconds = 0.5, kTimedSeconds = 0.25;
  PrefillRates result;
  auto& samples = result.rates.samples;
  double warm = 0, timed = 0;
  const auto is_warm = [&](int calls) { return calls >= bench.warmup && (bench.warmup == 0 || warm >= kWarmSeconds); };
  const auto enough = [&] { return std::ssize(samples) >= bench.runs && (bench.runs == 1 || timed >= kTimedSeconds); };
  for (int call = 0; !enough(); ++call) {
    const Slot slot = bench.depth > 0 ? engine.fork(begun) : begun;
    const Chunk prompt{.slot = slot, .tokens = tokens, .wanted = bench.all_logits ? Wanted::Dropped : Wanted::Last};
    stream.wait();
    const auto start = Clock::now();
    if (bench.depth == 0) engine.reset(slot);
    engine.run({&prompt, 1}, outputs);
    stream.wait();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    result.state_bytes = engine.state_bytes(slot);
    if (bench.depth > 0) engine.close(slot);
    if (is_warm(call)) {
      timed += seconds;
      samples.push_back(static_cast<double>(bench.tokens) / seconds);
    } else if (call > 0) {  // the first call allocates memory and autotunes
      warm += seconds;
    }
  }
  return result;
}

}  // namespace essh
