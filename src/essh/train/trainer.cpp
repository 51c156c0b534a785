#include "essh/train/trainer.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "essh/base/rng.h"
#include "essh/store/model_folder.h"
#include "essh/train/ordering.h"
#include "essh/train/schedule.h"

namespace essh {
namespace {

OptimizerRecipe stage_schedule(Stage stage, const Recipe& recipe) {
  auto schedule = recipe.optimizer;
  if (stage == Stage::Refinement) {
    schedule.rate = recipe.refine.rate;
    schedule.warmup = recipe.refine.warmup;
    schedule.schedule = "cosine";
    schedule.floor = 0;
  }
  return schedule;
}

// Refinement reads the data in an order of its own.
std::uint64_t stage_seed(Stage stage, const Recipe& recipe) {
  return recipe.run.seed + (stage == Stage::Refinement ? 0x5ef1e0u : 0);
}

}  // namespace

const char* stage_name(Stage stage) {
  return stage == Stage::Refinement ? "refinement" : "pretraining";
}

Trainer::Trainer(Stage stage, const Recipe& recipe, const ModelConfig& config, const Dataset& data, Stream& stream)
    : stage_(stage),
      recipe_(recipe),
      config_(config),
      data_(data),
      stream_(stream),
      model_(config),
      parameters_(config),
      gradient_(static_cast<std::size_t>(model_.layout().size())),
      schedule_(stage_schedule(stage, recipe)),
      optimizer_(model_.layout(), schedule_,
                 stage == Stage::Refinement ? DecayGroups::Refinement : DecayGroups::Pretraining,
                 frozen_tensors(model_.layout(), recipe.model)),
      objective_(model_, stream, recipe.run.loss_rows),
      sampler_(recipe.elastic, config, recipe.run.seed, recipe.run.steps),
      squares_(static_cast<std::size_t>(config.num_hidden_layers * config.intermediate_size)),
      step_squares_(squares_.size()),
      steps_(stage == Stage::Refinement ? recipe.refine.steps : recipe.run.steps) {
  if (data.vocab_size() > config.vocab_size)
    fail(ErrorKind::Usage, "the data has token ids up to {}, the model {}", data.vocab_size() - 1,
         config.vocab_size - 1);
  loader_ = std::make_unique<Loader>(
      data.train(),
      LoaderOptions{.context = recipe.data.context, .rows = recipe.run.micro_batch, .seed = stage_seed(stage, recipe)});
  if (!recipe.elastic.teacher.empty()) {
    auto loaded = load_model(recipe.elastic.teacher);
    if (loaded.config.vocab_size != config.vocab_size)
      fail(ErrorKind::Usage, "elastic.teacher {} has another vocabulary", recipe.elastic.teacher);
    parent_model_ = std::make_unique<Model<float>>(loaded.config);
    parent_ = std::make_unique<Parameters<float>>(std::move(loaded.parameters));
  }
}

void Trainer::start(const Parameters<float>& weights) {
  if (weights.layout().size() != model_.layout().size())
    fail(ErrorKind::Usage, "the weights to start from have another shape than the model of the recipe");
  std::copy_n(weights.data(), weights.layout().size(), parameters_.data());
}

void Trainer::resume(const Snapshot& s) {
  if (s.stage != stage_name(stage_))
    fail(ErrorKind::Usage, "the checkpoint is of {}, not of {}", s.stage, stage_name(stage_));
  if (s.data != data_.fingerprint())
    fail(ErrorKind::Usage, "the checkpoint was made on other data than {}", recipe_.data.path);
  if (s.weights.size() != gradient_.size() || s.squares.size() != squares_.size())
    fail(ErrorKind::Usage, "the checkpoint is of another model than the recipe's");
  std::copy(s.weights.begin(), s.weights.end(), parameters_.data());
  std::copy(s.first.begin(), s.first.end(), optimizer_.first().begin());
  std::copy(s.second.begin(), s.second.end(), optimizer_.second().begin());
  squares_ = s.squares;
  if (!s.sampler.empty()) sampler_.restore(s.sampler);
  step_ = s.step;
  optimizer_.set_steps(s.step);
  tokens_ = s.tokens;
  validation_ = s.validation;
  loader_->seek(s.position);
}

Snapshot Trainer::snapshot() const {
  return {.stage = stage_name(stage_),
          .config = config_,
          .weights = {parameters_.data(), parameters_.data() + model_.layout().size()},
          .first = {optimizer_.first().begin(), optimizer_.first().end()},
          .second = {optimizer_.second().begin(), optimizer_.second().end()},
          .squares = squares_,
          .sampler = sampler_.state(),
          .step = step_,
          .position = loader_->position(),
          .tokens = tokens_,
          .validation = validation_,
          .data = data_.fingerprint(),
          .recipe = recipe_yaml(recipe_)};
}

std::size_t Trainer::state_bytes() const {
  return (4 * gradient_.size()) * sizeof(float) + 2 * squares_.size() * sizeof(double);
}

TokenRows Trainer::next_rows() {
  const auto batch = loader_->next();
  TokenRows rows{.sequences = batch.rows, .length = batch.context, .inputs = {}, .targets = {}};
  for (Index r = 0; r < batch.rows; ++r) {
    const auto row = batch.row(r);
    rows.inputs.insert(rows.inputs.end(), row.begin(), row.end() - 1);
    rows.targets.insert(rows.targets.end(), row.begin() + 1, row.end());
  }
  return rows;
}

double Trainer::product_flops(Capacity capacity) const {
  Index products = 0;
  for (const auto& spec : model_.layout().tensors()) {
    if (spec.is_matrix()) products += spec.kept_rows(capacity) * spec.kept_cols(capacity);
  }
  return 2.0 * static_cast<double>(products);
}

void Trainer::learn_full(const TokenRows& rows, double scale, StepReport& report, Matrix<const float>* hidden) {
  const auto full = full_capacity(config_);
  const auto squares = dense(step_squares_.data(), config_.num_hidden_layers, config_.intermediate_size);
  const auto sums = objective_.learn(parameters_.weights(), {&model_.layout(), gradient_.data()}, rows, full,
                                     {.scale = scale}, nullptr, squares, hidden);
  squares_tokens_ += rows.tokens();
  report.full_loss += sums.label;
  report.full_tokens += sums.tokens;
  report.flops += 3 * product_flops(full) * static_cast<double>(rows.tokens());
}

void Trainer::learn_reduced(const TokenRows& rows, double budget, const ObjectiveWeights& counts,
                            const Teacher& teacher, StepReport& report) {
  const auto capacity = capacity_at(config_, budget);
  const bool taught = counts.kl != 0 || counts.tv != 0;
  const auto sums = objective_.learn(parameters_.weights(), {&model_.layout(), gradient_.data()}, rows, capacity,
                                     counts, taught ? &teacher : nullptr, {});
  report.reduced_loss += sums.label;
  report.divergence += sums.divergence;
  report.reduced_tokens += sums.tokens;
  report.flops += 3 * product_flops(capacity) * static_cast<double>(rows.tokens());
}

void Trainer::pretraining_batch(StepReport& report) {
  const auto& e = recipe_.elastic;
  const double scale = 1.0 / static_cast<double>(batch() * recipe_.data.context);
  const auto budgets = sampler_.draw(step_, tokens_, micro_batches());
  for (const double budget : budgets) {
    ++report.shares[budget];
    const auto rows = next_rows();
    if (budget == 1.0) {
      learn_full(rows, scale, report, nullptr);
    } else {
      Teacher teacher{.model = parent_ ? parent_model_.get() : &model_,
                      .weights = parent_ ? parent_->weights() : parameters_.weights()};
      if (e.kl > 0) {
        teacher.hidden =
            objective_.observe(*teacher.model, teacher.weights, rows, full_capacity(teacher.model->config()));
        report.flops += product_flops(full_capacity(config_)) * static_cast<double>(rows.tokens());
      }
      learn_reduced(
          rows, budget,
          {.label = e.label, .kl = e.kl, .scale = scale, .ffn_gradient = e.ffn_scale, .mixer_gradient = e.mixer_scale},
          teacher, report);
    }
    objective_.release();
  }
}

void Trainer::refinement_batch(StepReport& report) {
  const auto& r = recipe_.refine;
  const double scale = 1.0 / static_cast<double>(batch() * recipe_.data.context);
  Rng rng(recipe_.run.seed ^ 0x5ef1e0u, static_cast<std::uint64_t>(step_));
  std::vector<double> budgets = r.budgets;
  if (r.sampling == "shuffle") {
    budgets.clear();
    for (const auto& tier : tiers_of(config_)) {
      if (tier.budget < 1) budgets.push_back(tier.budget);
    }
    for (std::size_t i = budgets.size(); i > 1; --i) std::swap(budgets[i - 1], budgets[rng.below(i)]);
  } else {
    if (budgets.empty()) budgets = {2.0 / 32, 4.0 / 32, 8.0 / 32, 16.0 / 32, 24.0 / 32};
    budgets = {budgets[rng.below(budgets.size())]};
  }
  for (Index i = 0; i < micro_batches(); ++i) {
    const double budget = budgets[static_cast<std::size_t>(i) % budgets.size()];
    ++report.shares[budget];
    const auto rows = next_rows();
    Teacher teacher{.model = &model_, .weights = parameters_.weights()};
    learn_full(rows, scale, report, &teacher.hidden);
    learn_reduced(rows, budget, {.label = 1, .tv = r.tv, .scale = scale, .ffn_gradient = recipe_.elastic.ffn_scale},
                  teacher, report);
    objective_.release();
  }
}

void Trainer::update_squares() {
  if (squares_tokens_ == 0) return;
  const double memory = step_ == 0 ? 0 : recipe_.elastic.activation_memory;
  for (std::size_t i = 0; i < squares_.size(); ++i) {
    squares_[i] = memory * squares_[i] + (1 - memory) * step_squares_[i] / static_cast<double>(squares_tokens_);
  }
}

StepReport Trainer::step() {
  if (sampler_.wants_validation(step_) && stage_ == Stage::Pretraining) {
    std::map<double, double> losses;
    for (const auto& tier : tiers_of(config_)) losses[tier.budget] = validation_loss(tier.capacity);
    sampler_.validated(losses);
  }
  StepReport report;
  std::fill(gradient_.begin(), gradient_.end(), 0.0f);
  std::fill(step_squares_.begin(), step_squares_.end(), 0.0);
  squares_tokens_ = 0;
  if (stage_ == Stage::Pretraining)
    pretraining_batch(report);
  else
    refinement_batch(report);

  report.norm = optimizer_.norm(gradient_);
  report.rate = learning_rate(schedule_, step_, steps_);
  report.skipped = !std::isfinite(report.norm);
  if (report.skipped && recipe_.run.nonfinite == "stop") {
    fail(ErrorKind::Usage,
         "step {} (samples up to {}): the gradient is not finite and the step was not made; lower optimizer.rate or "
         "set run.nonfinite to skip or rollback",
         step_ + 1, loader_->position());
  }
  if (!report.skipped) {
    optimizer_.step(stream_, {parameters_.data(), gradient_.size()}, gradient_, report.rate,
                    clip_factor(report.norm, recipe_.optimizer.clip));
    update_squares();
  }
  tokens_ += static_cast<double>(batch() * recipe_.data.context);
  ++step_;
  const auto& e = recipe_.elastic;
  if (stage_ == Stage::Pretraining && e.ordering_period > 0 && e.sampling != "dense" &&
      step_ % e.ordering_period == 0 && static_cast<double>(step_) < e.ordering_until * static_cast<double>(steps_)) {
    const std::array companions = {optimizer_.first(), optimizer_.second()};
    order_units(model_.layout(), {parameters_.data(), gradient_.size()}, companions,
                dense(squares_.data(), config_.num_hidden_layers, config_.intermediate_size));
  }
  report.step = step_;
  report.tokens = tokens_;
  if (report.full_tokens > 0) report.full_loss /= static_cast<double>(report.full_tokens);
  if (report.reduced_tokens > 0) {
    report.reduced_loss /= static_cast<double>(report.reduced_tokens);
    report.divergence /= static_cast<double>(report.reduced_tokens);
  }
  return report;
}

double Trainer::validation_loss(Capacity capacity) {
  const Index context = recipe_.data.context,
              windows = std::min(recipe_.run.validation_windows, data_.valid().windows(context));
  if (windows == 0)
    fail(ErrorKind::Usage, "{}: the validation split is shorter than one sequence of {} tokens", recipe_.data.path,
         context);
  LossSums total;
  for (Index first = 0; first < windows; first += recipe_.run.micro_batch) {
    TokenRows rows{.sequences = std::min(recipe_.run.micro_batch, windows - first),
                   .length = context,
                   .inputs = {},
                   .targets = {}};
    std::vector<std::int32_t> window(static_cast<std::size_t>(context + 1));
    for (Index r = 0; r < rows.sequences; ++r) {
      data_.valid().read_window(first + r, window);
      rows.inputs.insert(rows.inputs.end(), window.begin(), window.end() - 1);
      rows.targets.insert(rows.targets.end(), window.begin() + 1, window.end());
    }
    const auto sums = objective_.score(parameters_.weights(), rows, capacity);
    total.label += sums.label;
    total.tokens += sums.tokens;
  }
  return total.label / static_cast<double>(total.tokens);
}

std::map<std::string, double> Trainer::validate() {
  std::map<std::string, double> losses;
  for (const auto& tier : tiers_of(config_)) losses[tier.name] = validation_loss(tier.capacity);
  validation_ = losses.at(tiers_of(config_).back().name);
  return losses;
}

}  // namespace essh
