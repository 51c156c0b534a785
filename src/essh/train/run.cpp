#include "essh/train/run.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <optional>
#include <sstream>

#include "essh/base/file.h"
#include "essh/base/interrupt.h"
#include "essh/base/json.h"
#include "essh/base/line_writer.h"
#include "essh/base/log.h"
#include "essh/base/machine.h"
#include "essh/base/progress.h"
#include "essh/base/units.h"
#include "essh/comm/group.h"
#include "essh/kernels/copy.h"
#include "essh/kernels/gemm.h"
#include "essh/model/cost.h"
#include "essh/model/initialise.h"
#include "essh/store/folder_writer.h"
#include "essh/store/model_folder.h"
#include "essh/store/run_folder.h"
#include "essh/train/run_identity.h"
#include "essh/train/trainer.h"

namespace essh {
namespace fs = std::filesystem;
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Floating-point rate of a large product in T on this device, the yardstick of utilisation.
template <class T>
double measured_peak(Stream& stream) {
  const Index side = stream.device() == Device::Cpu ? 1024 : 8192;
  Arena arena(stream.device());
  const auto a = arena.matrix<T>(side, side), b = arena.matrix<T>(side, side), c = arena.matrix<T>(side, side);
  launch(stream, Fill<T>{.x = a, .value = 0.5});
  launch(stream, Fill<T>{.x = b, .value = 0.25});
  double best = INFINITY;
  for (int round = 0; round < 4; ++round) {
    stream.wait();
    const auto start = Clock::now();
    launch(stream, Gemm<T>{.a = a, .b = b, .c = c, .transpose_b = Transpose::Yes});
    stream.wait();
    best = std::min(best, seconds_since(start));
  }
  return 2.0 * static_cast<double>(side * side * side) / best;
}

// Calls body with a value of the type that the recipe's model computes in on this device.
template <class Body>
auto with_compute_type(const Recipe& recipe, Device device, const Body& body) {
  const bool gpu = device == Device::Cuda;
  if (recipe.run.precision == "bf16" && !gpu)
    fail(ErrorKind::Usage, "run.precision: bf16 is for GPUs; use a CUDA device, or float32 (or auto) on the CPU");
  if (gpu && recipe.run.precision != "float32") return body(BFloat16{});
  return body(float{});
}

constexpr std::uint64_t kMetricsBytes = std::uint64_t{8} << 30;

// Drops the lines of steps that a resumed run will make again from its metrics, one JSON object per line.
void cut_metrics(const fs::path& path, Index resumed_step) {
  if (!fs::exists(path)) return;
  std::string kept;
  std::istringstream in(read_text(path, kMetricsBytes));
  for (std::string line; std::getline(in, line);) {
    try {
      const auto entry = parse_json(line, path.string());
      if (entry.value("step", Index{0}) <= resumed_step) kept += line + "\n";
    } catch (const Error&) {
      continue;  // torn by a crash
    }
  }
  write_durably(path, kept);
}

Json step_entry(const StepReport& r, double rate, double utilisation, double seconds) {
  Json shares = Json::object();
  for (const auto& [budget, count] : r.micro_batches) shares[fmt::format("{:.6g}", budget)] = count;
  const double tokens = static_cast<double>(std::max<Index>(1, r.full_tokens + r.reduced_tokens));
  const double loss =
      (r.full_loss * static_cast<double>(r.full_tokens) + r.reduced_loss * static_cast<double>(r.reduced_tokens)) /
      tokens;
  Json entry = {{"kind", "step"}, {"step", r.step}, {"tokens", static_cast<Index>(r.tokens)}, {"loss", loss}};
  entry["full_loss"] = r.full_tokens > 0 ? Json(r.full_loss) : Json(nullptr);
  entry["reduced_loss"] = r.reduced_tokens > 0 ? Json(r.reduced_loss) : Json(nullptr);
  entry["distillation"] = r.reduced_tokens > 0 || r.divergence != 0 ? Json(r.divergence) : Json(nullptr);
  entry["lr"] = r.rate;
  entry["grad_norm"] = r.skipped ? Json(nullptr) : Json(r.norm);
  entry["tokens_per_second"] = rate;
  entry["mfu"] = utilisation;
  entry["shares"] = shares;
  entry["seconds"] = seconds;
  return entry;
}

std::string losses_line(const std::map<std::string, double>& losses, const ModelConfig& config) {
  std::string line;
  for (const auto& tier : tiers_of(config))
    line += fmt::format(" {} {:.2f}", tier.name, std::exp(losses.at(tier.name)));
  return line;
}

// What one rank does for all of them in a run folder: metrics, checkpoints, the progress line.
class Keeper {
 public:
  Keeper(const fs::path& run, const StageFiles& files, const RunIdentity& identity)
      : run_(run), files_(files), identity_(identity), checkpoints_(run / files.checkpoints, identity.recipe.run.keep) {
    remove_leftovers(run);
  }

  // The newest checkpoint of this run that is whole.
  std::optional<Snapshot> newest() {
    finish_saving();
    auto snapshot = checkpoints_.newest();
    if (snapshot) require_same_run(*snapshot, identity_, run_ / files_.checkpoints);
    return snapshot;
  }

  // Refuses to repeat a stage that has come further than its checkpoints tell.
  void require_fresh() const {
    const bool damaged = has_damaged_checkpoints(run_ / files_.checkpoints);
    if (!damaged && !fs::exists(run_ / files_.model)) return;
    fail(ErrorKind::BadFile,
         "{}: {} and no checkpoint to go on from; restore one, or ask for a restart from step 0 (restart)",
         run_.string(), damaged ? "damaged checkpoints" : fmt::format("a finished model in {}", files_.model));
  }

  // Waits for the checkpoint that is being written. Training goes on when that has failed.
  void finish_saving() {
    try {
      checkpoints_.finish();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::BadFile) throw;
      log::warn("no checkpoint was written after step {}: {}", saving_, error.what());
      if (metrics_)
        metrics_->write(to_text({{"kind", "checkpoint_failed"}, {"step", saving_}, {"error", error.what()}}));
      failure_ = error.what();
    }
  }

  void save(Snapshot snapshot) {
    snapshot.run = identity_.id;
    failure_.clear();
    saving_ = snapshot.step;
    // A checkpoint promises the lines up to its step.
    metrics_->flush();
    checkpoints_.save(std::move(snapshot));
  }

  // Of the last checkpoint; empty when it was written.
  const std::string& failure() const { return failure_; }

  void begin(const char* stage, Index step, Index steps) {
    if (step > 0) log::info("{}: going on after step {}", run_.string(), step);
    metrics_.reset();
    cut_metrics(run_ / files_.metrics, step);
    metrics_.emplace(run_ / files_.metrics);
    progress_.emplace(stage, static_cast<double>(steps), "step");
    start_ = Clock::now();
  }

  // `peak`: of all ranks together.
  void made(const StepReport& report, double tokens, double seconds, double peak) {
    const double rate = tokens / seconds, utilisation = report.flops / seconds / peak;
    metrics_->write(to_text(step_entry(report, rate, utilisation, seconds_since(start_))));
    if (report.skipped) log::warn("step {}: the gradient was not finite, the step was not made", report.step);
    const auto reduced = report.reduced_tokens > 0 ? fmt::format(" (reduced {:.3f})", report.reduced_loss) : "";
    progress_->update(static_cast<double>(report.step),
                      fmt::format("loss {:.3f}{}  {} tok/s  {:.0f}% of GEMM peak", report.full_loss, reduced,
                                  format_count(rate), 100 * utilisation));
  }

  void validated(Index step, double tokens, const std::map<std::string, double>& losses, const ModelConfig& config) {
    Json tiers = Json::object();
    for (const auto& tier : tiers_of(config)) tiers[tier.name] = losses.at(tier.name);
    metrics_->write(
        to_text({{"kind", "validation"}, {"step", step}, {"tokens", static_cast<Index>(tokens)}, {"tiers", tiers}}));
    log::info("step {}: validation perplexity{}", step, losses_line(losses, config));
  }

  void end() {
    finish_saving();
    progress_->finish();
  }

 private:
  fs::path run_;
  StageFiles files_;
  RunIdentity identity_;
  Checkpoints checkpoints_;
  Index saving_ = 0;
  std::string failure_;
  std::optional<LineWriter> metrics_;
  std::optional<Progress> progress_;
  Clock::time_point start_;
};

// The ranks of a run, and what belongs to its folder: rank 0 alone writes there.
class Ranks {
 public:
  Ranks() : group_(comm::make_group()) {
    if (!first()) log::set_level(log::Level::Quiet);
  }
  comm::Group& group() { return *group_; }
  bool first() const { return group_->rank() == 0; }
  bool any(bool value) { return group_->all_reduce_max(value ? 1 : 0) > 0; }
  // The end of the work that the ranks do together, orderly whatever comes of it.
  void close() { group_->close(); }

 private:
  std::unique_ptr<comm::Group> group_;
};

// Goes back to the newest checkpoint, if rank 0 finds one.
template <class T>
bool resume(Trainer<T>& trainer, Ranks& ranks, Keeper* keeper) {
  std::optional<Snapshot> snapshot;
  if (keeper) snapshot = keeper->newest();
  if (!ranks.any(snapshot.has_value())) return false;
  if (!snapshot) snapshot.emplace();
  trainer.resume(*snapshot);
  return true;
}

// The newest checkpoint of pretraining.
Snapshot end_of_pretraining(const fs::path& run) {
  auto found = Checkpoints(run / kPretrainingFiles.checkpoints, 1).newest();
  if (!found)
    fail(ErrorKind::Usage,
         "{}: refine.moments=kept goes on with the last checkpoint of pretraining, and there is none; refine with "
         "--set refine.moments=fresh",
         (run / kPretrainingFiles.checkpoints).string());
  return std::move(*found);
}

// The loop that both stages share; it ends when the trainer has finished or was told to stop. Returns why the last
// checkpoint could not be written, or nothing.
template <class T>
std::string run_stage(Trainer<T>& trainer, const RunIdentity& identity, const fs::path& run, const StageFiles& files,
                      Stream& stream, Ranks& ranks, const RunOptions& options) {
  const auto& recipe = identity.recipe;
  std::optional<Keeper> keeper;
  if (ranks.first()) keeper.emplace(run, files, identity);
  Keeper* const kept = keeper ? &*keeper : nullptr;
  if (!resume(trainer, ranks, kept)) {
    if (kept) kept->require_fresh();
    if (trainer.inherits()) trainer.inherit(kept ? end_of_pretraining(run) : Snapshot());
    if (const Index tokens = trainer.calibrate(); tokens > 0)
      log::info("ordered the feed-forward units by their importance over {} tokens",
                format_count(static_cast<double>(tokens)));
  }
  if (kept) kept->begin(trainer.stage(), trainer.step_count(), trainer.steps());
  const double peak = measured_peak<T>(stream) * ranks.group().size();
  const InterruptScope interrupt(
      kept ? "stopping after this step with a checkpoint; a second signal stops at once, without one" : "");
  const Index first_step = trainer.step_count();
  while (!trainer.finished()) {
    const auto step_start = Clock::now();
    const double tokens_before = trainer.tokens();
    const auto report = trainer.step();
    if (kept) kept->made(report, report.tokens - tokens_before, seconds_since(step_start), peak);
    if (report.skipped && recipe.run.nonfinite == "rollback") {
      const Index position = trainer.position();
      if (!resume(trainer, ranks, kept))
        fail(ErrorKind::Usage, "step {}: the gradient is not finite and there is no checkpoint to roll back to",
             report.step);
      trainer.skip_to(position);
    }
    const Index step = trainer.step_count();
    const bool last = trainer.finished();
    if (last || (recipe.run.validate_every > 0 && step % recipe.run.validate_every == 0)) {
      const auto losses = trainer.validate();
      if (kept) kept->validated(step, trainer.tokens(), losses, trainer.config());
    }
    const bool stopping =
        ranks.any(interrupt.requested()) || (options.stop_after > 0 && step - first_step >= options.stop_after);
    if (last || stopping || (recipe.run.checkpoint_every > 0 && step % recipe.run.checkpoint_every == 0)) {
      if (kept) kept->finish_saving();  // before the next copy is made: there is never more than one
      auto snapshot = trainer.snapshot();
      if (kept) kept->save(std::move(snapshot));
    }
    if (stopping && !last) break;
  }
  if (!kept) return "";
  kept->end();
  return kept->failure();
}

template <class T>
void save_result(const fs::path& target, const Trainer<T>& trainer, const Recipe& recipe, const char* kind) {
  SaveOptions save{.existing = ExistingFolder::Replace};
  if (!recipe.data.path.empty()) save.copied = companion_files(recipe.data.path);
  const Json provenance = {{"format", 1}, {"kind", kind}, {"steps", trainer.steps()}, {"recipe", recipe_yaml(recipe)}};
  save.provenance = to_text(provenance, 2);
  save_model(target, trainer.config(), trainer.parameters(), full_capacity(trainer.config()), save);
}

// Weights of a model without slopes, and slopes of zero.
Parameters<float> with_slopes(const ModelConfig& config, const Parameters<float>& start) {
  Parameters<float> parameters(config);
  std::size_t next = 0;
  const auto& tensors = parameters.layout().tensors();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].slope) continue;
    const auto& given = start.layout().tensors();
    if (next == given.size() || given[next].name != tensors[i].name || given[next].shape() != tensors[i].shape())
      fail(ErrorKind::Usage, "the weights to start from have another shape than the model of the recipe");
    std::ranges::copy(start.tensor(next++), parameters.tensor(i).begin());
  }
  return parameters;
}

Parameters<float> initial_weights(const Recipe& recipe, const ModelConfig& config) {
  if (recipe.elastic.calibration_tokens > 0 && recipe.model.start.empty())
    fail(ErrorKind::Usage,
         "elastic.calibration_tokens ranks the feed-forward units of a trained parent; set model.start to its folder "
         "(and elastic.teacher, to learn from it), or calibration_tokens to 0");
  Parameters<float> parameters(config);
  if (!recipe.model.start.empty()) {
    auto start = load_model(recipe.model.start);
    if (start.config.elastic.slopes || !config.elastic.slopes) return std::move(start.parameters);
    return with_slopes(config, start.parameters);
  }
  initialise(parameters, config, recipe.run.seed, parse_modal_init(recipe.model.modes));
  return parameters;
}

// The capacities that stand for elastic.parameter_targets.
void tell_masks(const Recipe& recipe, const ModelConfig& config) {
  if (recipe.elastic.parameter_targets.empty()) return;
  const auto budgets = CapacitySampler(recipe.elastic, config, recipe.run.seed, recipe.run.steps).budgets();
  for (std::size_t i = 0; i < budgets.size(); ++i) {
    const auto capacity = capacity_at(config, budgets[i]);
    log::info("parameter target {}: {}, {} parameters (xi={:.4f})", recipe.elastic.parameter_targets[i],
              sizes_of(config, capacity), cost_of(config, capacity).parameters, budgets[i]);
  }
}

// A stage from where it stands to its end. Returns the step it stopped after, or nothing.
std::optional<Index> run_to_end(std::unique_ptr<Stage> stage, const StageFiles& files, const RunIdentity& identity,
                                const ModelConfig& config, const TrainingData& data,
                                const std::function<Parameters<float>()>& start, const fs::path& run, Ranks& ranks,
                                Stream& stream, const RunOptions& options) {
  const auto& recipe = identity.recipe;
  return with_compute_type(recipe, stream.device(), [&]<class T>(T) -> std::optional<Index> {
    Trainer<T> trainer(std::move(stage), recipe, config, data, stream, ranks.group());
    trainer.start(start());
    const auto failure = run_stage(trainer, identity, run, files, stream, ranks, options);
    if (trainer.finished() && ranks.first()) save_result(run / files.model, trainer, recipe, files.model);
    if (!failure.empty())
      fail(ErrorKind::BadFile, "the checkpoint of step {} was not written: {}", trainer.step_count(), failure);
    if (!trainer.finished()) return trainer.step_count();
    return std::nullopt;
  });
}

// Ends the ranks together; the one that speaks for them tells of a stop.
void finish(Ranks& ranks, const fs::path& run, std::optional<Index> stopped) {
  ranks.close();
  if (stopped && ranks.first())
    fail(ErrorKind::Interrupted, "{}: stopped after step {}; the same command goes on from there", run.string(),
         *stopped);
}

}  // namespace

fs::path run_training(const Recipe& recipe, const fs::path& run, Stream& stream, const RunOptions& options) {
  if (recipe.data.path.empty() && recipe.data.task.empty())
    fail(ErrorKind::Usage, "train: say what to train on: data.path (a folder that `essh prepare` made) or data.task");
  Ranks ranks;
  const TrainingData data(recipe.data);
  RunIdentity identity{.id = "", .data = data.fingerprint(), .recipe = with_absolute_paths(recipe)};
  std::optional<FileLock> lock;
  if (ranks.first()) {
    make_folder(run);
    lock.emplace(run / kRunLock);
    if (options.restart) set_aside_run(run, false);
    identity = settle_run(run, recipe, data.fingerprint(), options.extend);
  }
  const auto config = recipe_config(recipe, data.vocab_size(), data.eos_id());
  if (ranks.first()) tell_masks(identity.recipe, config);
  finish(ranks, run,
         run_to_end(
             make_pretraining(identity.recipe, config), kPretrainingFiles, identity, config, data,
             [&] { return initial_weights(identity.recipe, config); }, run, ranks, stream, options));
  return ranks.first() ? run / kPretrainingFiles.model : fs::path();
}

fs::path run_refinement(const fs::path& run, const std::vector<std::string>& settings, Stream& stream,
                        const RunOptions& options) {
  Ranks ranks;
  const auto path = run / kRunRecipe;
  if (!fs::exists(path)) fail(ErrorKind::Usage, "{}: not a run folder; `essh train` makes one", run.string());
  std::optional<FileLock> lock;
  if (ranks.first()) lock.emplace(run / kRunLock);
  const auto recipe = parse_recipe(read_text(path, 1u << 20), path.string(), settings);
  if (!fs::is_directory(run / kPretrainingFiles.model))
    fail(ErrorKind::Usage, "{}: pretraining has not finished; run `essh train` to its end first", run.string());
  auto parent = load_model(run / kPretrainingFiles.model);
  const TrainingData data(recipe.data);
  RunIdentity identity{.id = "", .data = data.fingerprint(), .recipe = with_absolute_paths(recipe)};
  if (ranks.first()) {
    if (options.restart) set_aside_run(run, true);
    const bool chosen = std::any_of(settings.begin(), settings.end(),
                                    [](const std::string& setting) { return setting.starts_with("data."); });
    identity =
        settle_refinement(run, recipe, data.fingerprint(), chosen ? RefinementData::Chosen : RefinementData::OfTheRun);
  }
  finish(ranks, run,
         run_to_end(
             make_refinement(identity.recipe, parent.config), kRefinementFiles, identity, parent.config, data,
             [&] { return std::move(parent.parameters); }, run, ranks, stream, options));
  return ranks.first() ? run / kRefinementFiles.model : fs::path();
}

RunEstimate estimate_run(const Recipe& recipe, Stream& stream) {
  const TrainingData data(recipe.data);
  const auto config = recipe_config(recipe, data.vocab_size(), data.eos_id());
  const auto group = comm::make_single_group();
  // A few micro-batches show what many take.
  constexpr Index kMicroBatches = 4, kSteps = 2;
  auto quick = recipe;
  quick.elastic.warmup_tokens = 0;
  quick.run.batch = std::min(recipe.run.batch, kMicroBatches * recipe.run.micro_batch);
  const double data_bytes = data.mapped_bytes(recipe.run.steps * recipe.run.batch), data_read = data.read_ahead();
  return with_compute_type(recipe, stream.device(), [&]<class T>(T) {
    Trainer<T> trainer(make_pretraining(quick, config), quick, config, data, stream, *group);
    trainer.start(initial_weights(recipe, config));
    RunEstimate e;
    const ParameterLayout layout(config);
    e.parameters = layout.parameters();
    e.reduced = reduced_shares(recipe, config);
    e.gradient_bytes = static_cast<double>(layout.size()) * sizeof(float);
    e.moment_bytes = static_cast<double>(trainer.optimizer().states().size()) * e.gradient_bytes;
    e.weights_bytes =
        e.gradient_bytes + (std::is_same_v<T, float> ? 0 : static_cast<double>(layout.size() * sizeof(T)));
    stream.wait();
    const auto start = Clock::now();
    double flops = 0, tokens = 0;
    for (Index i = 0; i < kSteps; ++i) {
      const auto report = trainer.step();
      flops += report.flops;
      tokens += static_cast<double>(quick.run.batch * recipe.data.context);
    }
    stream.wait();
    e.tokens = static_cast<double>(recipe.run.steps * recipe.run.batch * recipe.data.context);
    e.seconds = seconds_since(start) / tokens * e.tokens;
    e.flops_per_token = flops / tokens;
    e.activation_bytes = static_cast<double>(trainer.activation_bytes());
    e.total_bytes = e.weights_bytes + e.gradient_bytes + e.moment_bytes + e.activation_bytes;
    if (stream.device() == Device::Cpu) {
      // Peak = resident now + checkpoint copy + data not yet paged in.
      const auto snapshot = trainer.snapshot();
      e.checkpoint_bytes = static_cast<double>(snapshot.bytes());
      e.data_bytes = data_bytes;
      const double known = e.total_bytes + e.checkpoint_bytes + e.data_bytes;
      e.total_bytes = std::max(known, static_cast<double>(peak_resident_memory()) + data_bytes - data_read);
      e.other_bytes = e.total_bytes - known;
    }
    e.peak_flops = measured_peak<T>(stream);
    return e;
  });
}

}  // namespace essh
