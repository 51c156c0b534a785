#include "essh/train/trainer.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "essh/base/units.h"
#include "essh/kernels/add_scaled.h"
#include "essh/kernels/clear.h"
#include "essh/kernels/running_mean.h"
#include "essh/store/model_folder.h"
#include "essh/train/ordering.h"

namespace essh {
namespace {

std::span<const float> flat(const Parameters<float>& parameters) {
  return {parameters.data(), static_cast<std::size_t>(parameters.layout().size())};
}

TokenRows token_rows(Batch batch) {
  return {.sequences = batch.rows,
          .length = batch.length,
          .inputs = std::move(batch.inputs),
          .targets = std::move(batch.targets)};
}

// Elements that travel at once between host memory and ranks.
constexpr Index kPiece = Index{1} << 22;

}  // namespace

template <class T>
Trainer<T>::Trainer(std::unique_ptr<Stage> stage, const Recipe& recipe, const ModelConfig& config,
                    const TrainingData& data, Stream& stream, comm::Group& group)
    : stage_(std::move(stage)),
      recipe_(recipe),
      config_(config),
      data_(data),
      stream_(stream),
      group_(group),
      model_(config),
      shards_(model_.layout(), group, stream),
      weights_(model_.layout(), stream),
      gradient_(stream.device(), model_.layout().size(), "gradients"),
      optimizer_(make_optimizer(model_, recipe.optimizer, stage_->settings.decay,
                                frozen_tensors(model_.layout(), recipe.model), shards_, stream)),
      objective_(model_, stream, recipe.run.loss_rows),
      training_(data.training(stage_->settings.seed)),
      held_out_(data.validation()),
      totals_(stream.device(), kTotals, "losses"),
      squares_(stream.device(), config.num_hidden_layers * config.intermediate_size, "squared activations"),
      step_squares_(stream.device(), squares_.size(), "squared activations") {
  if (data.vocab_size() > config.vocab_size)
    fail(ErrorKind::Usage, "the data has token ids up to {}, the model {}", data.vocab_size() - 1,
         config.vocab_size - 1);
  if (micro_batches() % group.size() != 0)
    fail(ErrorKind::Usage,
         "a step of {} sequences is {} micro-batches of {}, which {} ranks cannot share evenly; use another number of "
         "ranks, {} or run.micro_batch",
         batch(), micro_batches(), recipe.run.micro_batch, group.size(), stage_->settings.batch_setting);
  clear(stream, squares_.view());
  loader_ = std::make_unique<Loader>(
      *training_, LoaderOptions{.rows = recipe.run.micro_batch, .rank = group.rank(), .ranks = group.size()},
      stage_->settings.first_sequence);
  if (const auto& teacher = stage_->settings.teacher; !teacher.empty()) {
    const auto loaded = load_model(teacher);
    if (loaded.config.vocab_size != config.vocab_size)
      fail(ErrorKind::Usage, "elastic.teacher {} has another vocabulary", teacher);
    parent_model_ = std::make_unique<Model<T>>(loaded.config);
    parent_ = std::make_unique<MasterWeights<T>>(parent_model_->layout(), stream);
    parent_->set(flat(loaded.parameters));
  }
}

template <class T>
void Trainer<T>::start(const Parameters<float>& weights) {
  if (weights.layout().size() != model_.layout().size())
    fail(ErrorKind::Usage, "the weights to start from have another shape than the model of the recipe");
  weights_.set(flat(weights));
}

template <class T>
Index Trainer<T>::calibrate() {
  const Index tokens = stage_->settings.calibration_tokens;
  if (tokens == 0) return 0;
  // An order of its own: which samples training sees does not depend on the calibration.
  constexpr std::uint64_t kCalibrationSeed = 0xca11b8a7eULL;
  const auto sequences = data_.training(stage_->settings.seed ^ kCalibrationSeed);
  clear(stream_, step_squares_.view());
  squares_tokens_ = 0;
  for (Index i = 0; squares_tokens_ < static_cast<double>(tokens); ++i) {
    squares_tokens_ += micro_batch_tokens();
    if (!is_mine(i)) continue;
    const auto rows = token_rows(read_batch(*sequences, i * recipe_.run.micro_batch, recipe_.run.micro_batch));
    objective_.observe(model_, weights_.weights(), objective_.place(rows), full_capacity(config_), step_squares());
    objective_.release();
  }
  update_squares();
  order_feed_forwards();
  return static_cast<Index>(squares_tokens_);
}

template <class T>
template <class V, class Take>
void Trainer<T>::distribute(std::span<const V> values, Index size, const Take& take) {
  std::vector<V> piece;
  for (Index begin = 0; begin < size; begin += kPiece) {
    const Index count = std::min(kPiece, size - begin);
    piece.resize(static_cast<std::size_t>(count));
    if (group_.rank() == 0) std::copy_n(values.begin() + begin, count, piece.begin());
    group_.broadcast(std::as_writable_bytes(std::span(piece)), 0);
    take(begin, Vector<const V>{piece.data(), count});
  }
}

template <class T>
void Trainer<T>::require_fitting(const Snapshot& s) const {
  if (s.algorithm != optimizer_->algorithm())
    fail(ErrorKind::Usage, "the checkpoint holds states of the optimizer {}, the recipe trains with {}", s.algorithm,
         optimizer_->algorithm());
  const auto fits = [&](const std::vector<float>& values) { return std::ssize(values) == gradient_.size(); };
  bool all_fit = fits(s.weights) && std::ssize(s.squares) == squares_.size();
  for (const auto& state : optimizer_->states())
    all_fit = all_fit && s.states.contains(state.name) && fits(s.states.at(state.name));
  if (!all_fit) fail(ErrorKind::Usage, "the checkpoint is of another model than the recipe's");
}

template <class T>
void Trainer<T>::distribute_states(const Snapshot& s) {
  for (const auto& state : optimizer_->states()) {
    const auto found = s.states.find(state.name);
    const std::span<const float> values = found == s.states.end() ? std::span<const float>() : found->second;
    distribute(values, gradient_.size(), [&](Index begin, Vector<const float> piece) {
      shards_.keep(piece, begin, begin + piece.size, state.values.view());
    });
  }
}

template <class T>
void Trainer<T>::inherit(const Snapshot& pretraining) {
  const Index steps = stage_->settings.inherited_steps;
  if (group_.rank() == 0) {
    if (pretraining.step != steps)
      fail(ErrorKind::Usage,
           "refine.moments=kept goes on with the checkpoint of the last step of pretraining, {}, and the newest is of "
           "step {}; refine with --set refine.moments=fresh",
           steps, pretraining.step);
    require_fitting(pretraining);
    if (!std::ranges::equal(flat(parameters()), pretraining.weights))
      fail(ErrorKind::Usage,
           "the last checkpoint of pretraining has other weights than the pretrained model; refine with --set "
           "refine.moments=fresh");
  }
  distribute_states(pretraining);
  optimizer_->set_steps(steps);
  // Further on than its steps if pretraining skipped batches.
  if (stage_->settings.first_sequence > 0) {
    Index position = pretraining.position;
    group_.broadcast(std::as_writable_bytes(std::span(&position, 1)), 0);
    loader_->seek(position);
  }
}

template <class T>
void Trainer<T>::resume(const Snapshot& s) {
  if (group_.rank() == 0) {
    if (s.stage != stage()) fail(ErrorKind::Usage, "the checkpoint is of {}, not of {}", s.stage, stage());
    if (s.data != data_.fingerprint())
      fail(ErrorKind::Usage, "the checkpoint was made on other data than {}", recipe_.data.path);
    require_fitting(s);
  }
  distribute<float>(s.weights, gradient_.size(), [&](Index begin, Vector<const float> piece) {
    stream_.copy(weights_.values().data + begin, piece.data, static_cast<std::size_t>(piece.size) * sizeof(float));
  });
  weights_.round();
  distribute_states(s);
  distribute<double>(s.squares, squares_.size(), [&](Index begin, Vector<const double> piece) {
    upload(stream_, std::span(piece.data, static_cast<std::size_t>(piece.size)), squares_.view(begin, piece.size));
  });
  struct {
    Index step, position, sampler;
    double tokens, validation;
  } numbers{s.step, s.position, static_cast<Index>(s.sampler.size()), s.tokens, s.validation};
  group_.broadcast(std::as_writable_bytes(std::span(&numbers, 1)), 0);
  auto sampler = s.sampler;
  sampler.resize(static_cast<std::size_t>(numbers.sampler));
  group_.broadcast(std::as_writable_bytes(std::span(sampler)), 0);
  if (stage_->sampler() && !sampler.empty()) stage_->sampler()->restore(sampler);
  step_ = numbers.step;
  optimizer_->set_steps(stage_->settings.inherited_steps + numbers.step);
  tokens_ = numbers.tokens;
  validation_ = numbers.validation;
  loader_->seek(numbers.position);
}

template <class T>
Snapshot Trainer<T>::snapshot() {
  const auto* const sampler = stage_->sampler();
  Snapshot s{{.stage = stage(),
              .algorithm = optimizer_->algorithm(),
              .step = step_,
              .position = loader_->position(),
              .tokens = tokens_,
              .validation = validation_,
              .sampler = sampler ? sampler->state() : std::vector<double>(),
              .data = data_.fingerprint(),
              .recipe = recipe_yaml(recipe_)},
             config_};
  const bool keeps = group_.rank() == 0;
  if (keeps) {
    s.weights = weights_.get();
    s.squares.resize(static_cast<std::size_t>(squares_.size()));
    download(stream_, squares_.view(), s.squares);
  }
  Arena& arena = objective_.arena();
  for (const auto& state : optimizer_->states()) {
    auto& values = s.states[state.name];
    if (keeps) values.resize(static_cast<std::size_t>(gradient_.size()));
    for (Index begin = 0; begin < gradient_.size(); begin += kPiece) {
      const auto mark = arena.mark();
      const auto piece = shards_.whole(state.values.view(), begin, std::min(gradient_.size(), begin + kPiece), arena);
      if (keeps)
        download(stream_, piece,
                 std::span(values).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(piece.size)));
      arena.release(mark);
    }
  }
  return s;
}

template <class T>
Parameters<float> Trainer<T>::parameters() const {
  Parameters<float> host(config_);
  download(stream_, weights_.values(), {host.data(), static_cast<std::size_t>(host.layout().size())});
  return host;
}

template <class T>
double Trainer<T>::product_flops(Capacity capacity) const {
  Index products = 0;
  for (const auto& spec : model_.layout().tensors()) {
    if (spec.is_matrix() && !spec.slope) products += spec.kept_rows(capacity) * spec.kept_cols(capacity);
  }
  return 2.0 * static_cast<double>(products);
}

template <class T>
void Trainer<T>::count(const MicroBatchPlan& plan, StepReport& report) {
  const double tokens = micro_batch_tokens();
  ++report.micro_batches[plan.budget];
  if (plan.all_by_label() || plan.all_by_teacher()) squares_tokens_ += tokens;
  const double teacher = product_flops(capacity_of(plan.teacher_budget)) * tokens;
  report.flops += plan.full ? 3 * teacher : plan.taught() ? teacher : 0;
  if (plan.reduced) report.flops += 3 * product_flops(capacity_of(plan.budget)) * tokens;
}

template <class T>
Weights Trainer<T>::weights_at(Capacity capacity) {
  auto weights = weights_.weights();
  if (!follows_slopes(capacity)) return weights;
  const auto& layout = model_.layout();
  const double share = slope_share(config_, capacity);
  const auto values = weights_.values();
  for (std::size_t part = 0, i = 0; part < layout.sloped().size(); ++part) {
    const auto [begin, slopes, size] = layout.sloped()[part];
    const auto add = [&]<class E>(Vector<E> sum) {
      launch(stream_, AddScaled<E>{.x = values.middle(begin, size),
                                   .y = values.middle(slopes, size),
                                   .factor = static_cast<float>(share),
                                   .sum = sum});
      for (; !layout.tensors()[i].slope; ++i)
        weights.tensors[i] = dense(sum.data + layout.offset(i) - begin, weights[i].rows, weights[i].cols);
      while (i < layout.tensors().size() && layout.tensors()[i].slope) ++i;
    };
    if (layout.tensors()[i].is_matrix())
      add(objective_.arena().template vector<T>(size));
    else
      add(objective_.arena().template vector<float>(size));
  }
  return weights;
}

template <class T>
void Trainer<T>::add_with_slopes(Vector<const float> gradient, Capacity capacity) {
  const auto share = static_cast<float>(slope_share(config_, capacity));
  for (const auto& [begin, slopes, size] : model_.layout().sloped()) {
    for (const auto& [to, factor] : {std::pair(begin, 1.0f), std::pair(slopes, share)}) {
      const auto sum = gradient_.view().middle(to, size);
      launch(stream_, AddScaled<float>{.x = sum, .y = gradient.middle(begin, size), .factor = factor, .sum = sum});
    }
  }
}

template <class T>
void Trainer<T>::learn(const TokenRows& rows, const MicroBatchPlan& plan, bool last) {
  const auto placed = objective_.place(rows);
  const auto passes = [&] { launch_passes(placed, plan, last); };
  // A smaller micro-batch is one that fitting_micro_batch() tries.
  if (shards_.alone() && rows.sequences == recipe_.run.micro_batch)
    recordings_[plan.budget].run(stream_, passes);
  else
    passes();
  objective_.release();
}

template <class T>
void Trainer<T>::launch_passes(const PlacedRows& rows, const MicroBatchPlan& plan, bool last) {
  const double scale = 1.0 / static_cast<double>(batch() * training_->labels());
  const auto* const layer_done = last && !shards_.alone() ? &start_sums_ : nullptr;
  const auto teaching = weights_at(capacity_of(plan.teacher_budget));
  Teacher<T> teacher{.model = &model_, .weights = &teaching};
  // The gradient at a capacity that follows slopes is summed by itself, and given to both.
  const auto own_gradient = [&](Capacity capacity) {
    if (!follows_slopes(capacity)) return gradients();
    const auto own = objective_.arena().template vector<float>(gradient_.size());
    clear(stream_, own);
    return Gradients<T>{&model_.layout(), own.data};
  };
  const auto add_own = [&](const Gradients<T>& own, Capacity capacity) {
    if (follows_slopes(capacity)) add_with_slopes({own.data, gradient_.size()}, capacity);
  };
  if (plan.full) {
    const auto capacity = capacity_of(plan.teacher_budget);
    const auto own = own_gradient(capacity);
    objective_.learn(teaching, own, rows, capacity, {.scale = scale}, nullptr,
                     {.totals = totals_.view(kFull, kLossTotals),
                      .squares = plan.all_by_label() ? step_squares() : Matrix<double>{},
                      .hidden = plan.taught() ? &teacher.hidden : nullptr,
                      .layer_done = plan.reduced || follows_slopes(capacity) ? nullptr : layer_done});
    add_own(own, capacity);
  } else if (plan.taught()) {
    if (parent_) teacher = {.model = parent_model_.get(), .weights = &parent_->weights()};
    teacher.hidden =
        objective_.observe(*teacher.model, *teacher.weights, rows,
                           parent_ ? full_capacity(parent_model_->config()) : capacity_of(plan.teacher_budget));
  }
  if (plan.reduced) {
    auto counts = *plan.reduced;
    counts.scale = scale;
    const auto capacity = capacity_of(plan.budget);
    const auto own = own_gradient(capacity);
    objective_.learn(weights_at(capacity), own, rows, capacity, counts, plan.taught() ? &teacher : nullptr,
                     {.totals = totals_.view(plan.all_by_teacher() ? kFull : kReduced, kLossTotals),
                      .squares = plan.all_by_teacher() ? step_squares() : Matrix<double>{},
                      .layer_done = follows_slopes(capacity) ? nullptr : layer_done});
    add_own(own, capacity);
  }
}

template <class T>
void Trainer<T>::learn_step(StepReport& report) {
  const auto budgets = stage_->budgets(step_, tokens_, micro_batches());
  for (Index i = 0; i < micro_batches(); ++i) {
    const auto plan = stage_->plan(budgets[static_cast<std::size_t>(i)]);
    count(plan, report);
    if (is_mine(i)) learn(token_rows(loader_->next()), plan, is_last(i));
  }
}

template <class T>
Index Trainer<T>::fitting_micro_batch() {
  double largest = 0;  // of the budgets below full capacity
  for (const auto& tier : tiers_of(config_)) {
    if (tier.budget < 1) largest = std::max(largest, tier.budget);
  }
  std::vector<MicroBatchPlan> plans = {stage_->plan(largest > 0 ? largest : 1)};
  if (!plans.front().full) plans.push_back(stage_->plan(1));
  for (Index sequences = recipe_.run.micro_batch - 1; sequences > 0; --sequences) {
    if (recipe_.run.micro_batch % sequences != 0) continue;
    const auto tokens = static_cast<std::size_t>(sequences * training_->length());
    const TokenRows rows{.sequences = sequences,
                         .length = training_->length(),
                         .inputs = std::vector<std::int32_t>(tokens),
                         .targets = std::vector<std::int32_t>(tokens)};
    objective_.release();
    try {
      for (const auto& plan : plans) learn(rows, plan, false);
      stream_.wait();
      return sequences;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::OutOfMemory) throw;
    }
  }
  return 0;
}

// The one place of a step where the host waits for the device.
template <class T>
void Trainer<T>::read_totals(StepReport& report) {
  std::array<double, kTotals> totals;
  download(stream_, totals_.view(), totals);
  group_.all_reduce_sum(totals);
  const auto tokens = [&](Index first) { return static_cast<Index>(totals[static_cast<std::size_t>(first) + 2]); };
  report.full_tokens = tokens(kFull);
  report.reduced_tokens = tokens(kReduced);
  if (report.full_tokens > 0) report.full_loss = totals[kFull] / totals[kFull + 2];
  if (report.reduced_tokens > 0) report.reduced_loss = totals[kReduced] / totals[kReduced + 2];
  const double taught = totals[kReduced + 2] + (parent_ ? totals[kFull + 2] : 0);
  if (taught > 0) report.divergence = (totals[kFull + 1] + totals[kReduced + 1]) / taught;
  report.norm = std::sqrt(totals[kSquaredNorm]);
}

template <class T>
void Trainer<T>::update_squares() {
  if (squares_tokens_ == 0) return;
  if (!shards_.alone()) {
    std::vector<double> sums(static_cast<std::size_t>(step_squares_.size()));
    download(stream_, step_squares_.view(), sums);
    group_.all_reduce_sum(sums);
    upload(stream_, sums, step_squares_.view());
  }
  launch(stream_, RunningMean{.sums = step_squares_.view(),
                              .mean = squares_.view(),
                              .memory = step_ == 0 ? 0 : recipe_.elastic.activation_memory,
                              .count = squares_tokens_});
}

template <class T>
void Trainer<T>::order_feed_forwards() {
  std::vector<double> squares(static_cast<std::size_t>(squares_.size()));
  download(stream_, squares_.view(), squares);
  const auto by_layer = dense(squares.data(), config_.num_hidden_layers, config_.intermediate_size);
  const auto& layout = model_.layout();
  const auto order = importance_order(stream_, objective_.arena(), layout, weights_.values(), by_layer);
  order_units(stream_, objective_.arena(), layout, order, weights_.values());
  weights_.round();
  for (const auto& state : optimizer_->states())
    order_units(stream_, objective_.arena(), layout, order, shards_, state.values.view());
  order_units(order, by_layer);
  upload(stream_, squares, squares_.view());
}

template <class T>
StepReport Trainer<T>::step() {
  if (auto* const sampler = stage_->sampler(); sampler && sampler->wants_validation(step_)) {
    const auto tiers = tiers_of(config_);
    const auto found = validation_losses();
    std::map<double, double> losses;
    for (std::size_t i = 0; i < tiers.size(); ++i) losses[tiers[i].budget] = found[i];
    sampler->validated(losses);
  }
  StepReport report;
  clear(stream_, gradient_.view());
  clear(stream_, step_squares_.view());
  clear(stream_, totals_.view());
  squares_tokens_ = 0;
  try {
    learn_step(report);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::OutOfMemory) throw;
    constexpr std::size_t kWorthNaming = 1'000'000;
    std::string held;
    for (const auto& [purpose, bytes] : held_memory(stream_.device())) {
      if (bytes >= kWorthNaming)
        held += fmt::format("{}{} {}", held.empty() ? "" : ", ", purpose, format_bytes(static_cast<double>(bytes)));
    }
    const Index fits = fitting_micro_batch();
    fail(ErrorKind::OutOfMemory, "run.micro_batch = {}: {} (held by then: {}). {}", recipe_.run.micro_batch,
         error.what(), held,
         fits > 0 ? fmt::format("A smaller one fits, tried just now: run.micro_batch={}", fits)
                  : "No smaller one fits either: use a smaller model, context or loss_rows");
  }

  shards_.start_sums(gradient_.view(), -1);
  shards_.wait();
  optimizer_->add_squares(gradient_.view(), totals_.data() + kSquaredNorm);
  read_totals(report);
  report.rate = stage_->settings.schedule.rate(step_);
  report.skipped = !std::isfinite(report.norm);
  if (report.skipped && recipe_.run.nonfinite == "stop") {
    fail(ErrorKind::Usage,
         "step {} (samples up to {}): the gradient is not finite and the step was not made; lower optimizer.rate or "
         "set run.nonfinite to skip or rollback",
         step_ + 1, loader_->position());
  }
  if (!report.skipped) {
    // What comes from other ranks is rounded when it is here.
    optimizer_->step(objective_.arena(), weights_.values(), shards_.alone() ? weights_.rounded() : Vector<BFloat16>{},
                     gradient_.view(), report.rate, clip_factor(report.norm, recipe_.optimizer.clip));
    if (!shards_.alone()) weights_.round();
    update_squares();
  }
  tokens_ += static_cast<double>(batch() * recipe_.data.context);
  ++step_;
  if (stage_->orders_units(step_)) order_feed_forwards();
  report.step = step_;
  report.tokens = tokens_;
  return report;
}

// Mean loss of every tier on the validation split.
template <class T>
std::vector<double> Trainer<T>::validation_losses() {
  const Index windows = std::min(recipe_.run.validation_windows, data_.validation_count());
  const auto tiers = tiers_of(config_);
  Arena& arena = objective_.arena();
  const auto mark = arena.mark();
  const auto totals = arena.vector<double>(static_cast<Index>(tiers.size()) * kLossTotals);
  clear(stream_, totals);
  for (Index first = 0; first < windows; first += recipe_.run.micro_batch) {
    if (!is_mine(first / recipe_.run.micro_batch)) continue;
    const auto batch_mark = arena.mark();
    const auto rows =
        objective_.place(token_rows(read_batch(*held_out_, first, std::min(recipe_.run.micro_batch, windows - first))));
    for (std::size_t i = 0; i < tiers.size(); ++i) {
      const auto own = arena.mark();
      objective_.score(weights_at(tiers[i].capacity), rows, tiers[i].capacity,
                       totals.middle(static_cast<Index>(i) * kLossTotals, kLossTotals));
      arena.release(own);
    }
    arena.release(batch_mark);
  }
  std::vector<double> sums(static_cast<std::size_t>(totals.size)), losses;
  download(stream_, totals, sums);
  arena.release(mark);
  group_.all_reduce_sum(sums);
  for (std::size_t i = 0; i < sums.size(); i += kLossTotals) losses.push_back(sums[i] / sums[i + 2]);
  return losses;
}

template <class T>
std::map<std::string, double> Trainer<T>::validate() {
  const auto tiers = tiers_of(config_);
  const auto found = validation_losses();
  std::map<std::string, double> losses;
  for (std::size_t i = 0; i < tiers.size(); ++i) losses[tiers[i].name] = found[i];
  validation_ = found.back();
  return losses;
}

template class Trainer<float>;
template class Trainer<BFloat16>;

}  // namespace essh
