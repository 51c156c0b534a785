#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "essh/data/loader.h"
#include "essh/train/checkpoint.h"
#include "essh/train/master_weights.h"
#include "essh/train/stage.h"
#include "essh/train/training_data.h"

namespace essh {

// What one optimizer step did. Losses are means over tokens.
struct StepReport {
  Index step = 0;           // steps done, this one included
  double tokens = 0;        // seen so far
  double full_loss = 0;     // label loss at full capacity
  double reduced_loss = 0;  // label loss at the sampled capacities
  double divergence = 0;    // KL or TV of the capacities that have a teacher
  Index full_tokens = 0, reduced_tokens = 0;
  double rate = 0;
  double norm = 0;                        // of the gradient, before clipping
  double flops = 0;                       // of the matrix products of this step
  bool skipped = false;                   // the gradient was not finite and the weights were left alone
  std::map<double, Index> micro_batches;  // by budget
};

// One stage of training, computing in T on the stream's device; weights, gradients and the optimizer's states are
// float32. A snapshot holds everything that a step depends on: on the CPU a resumed run repeats an uninterrupted one
// bit by bit.
//
// Several ranks form one trainer. Micro-batches are dealt round-robin, so each has the same samples and capacity for
// any number of ranks; results differ only by rounding. Every member is a collective, except the accessors.
template <class T>
class Trainer {
 public:
  // `data`, `stream` and `group` must outlive the trainer.
  Trainer(std::unique_ptr<Stage> stage, const Recipe& recipe, const ModelConfig& config, const TrainingData& data,
          Stream& stream, comm::Group& group);

  // Starts the stage with these weights and zero optimizer states.
  void start(const Parameters<float>& weights);
  // Calibration, if the stage has one: sorts the feed-forward units by their importance over the calibration tokens and
  // returns the number of tokens. The function at full capacity does not change.
  Index calibrate();
  // Resumes the stage from a snapshot made with any number of ranks. Rank 0 passes the snapshot and distributes it. A
  // snapshot of other data, another model or another optimizer is refused.
  void resume(const Snapshot& snapshot);
  // Whether the stage goes on with the optimizer's states of pretraining. inherit() takes them, after start(), from the
  // snapshot of its last step, which rank 0 passes; a snapshot with other weights is refused.
  bool inherits() const { return stage_->settings.inherited_steps > 0; }
  void inherit(const Snapshot& pretraining);
  // Complete on rank 0; without arrays on the others.
  Snapshot snapshot();

  bool finished() const { return step_ >= steps(); }
  const char* stage() const { return stage_->settings.name; }
  Index step_count() const { return step_; }
  Index steps() const { return stage_->settings.schedule.steps; }
  double tokens() const { return tokens_; }
  Index position() const { return loader_->position(); }
  // Skips samples, for example those of a failed batch.
  void skip_to(Index position) { loader_->seek(position); }
  StepReport step();

  // Mean loss of the named tiers on the validation split.
  std::map<std::string, double> validate();
  // The current weights, in host memory.
  Parameters<float> parameters() const;
  const ModelConfig& config() const { return config_; }
  const Optimizer& optimizer() const { return *optimizer_; }
  // Peak bytes of the arena.
  std::size_t activation_bytes() const { return objective_.memory(); }

 private:
  // Sums of one step on the device.
  static constexpr Index kFull = 0, kReduced = kLossTotals, kSquaredNorm = 2 * kLossTotals, kTotals = kSquaredNorm + 1;

  // Whether a micro-batch of a step is this rank's, and whether it is its last.
  bool is_mine(Index micro_batch) const { return micro_batch % group_.size() == group_.rank(); }
  bool is_last(Index micro_batch) const { return micro_batch + group_.size() >= micro_batches(); }
  // A micro-batch's contribution to the report, the same on every rank.
  void count(const MicroBatchPlan& plan, StepReport& report);
  // All passes over one micro-batch. `last`: this rank's last one of the step. On CUDA the launches of a budget are
  // recorded; with several ranks they are not, since sums of gradients start between them.
  void learn(const TokenRows& rows, const MicroBatchPlan& plan, bool last);
  void launch_passes(const PlacedRows& rows, const MicroBatchPlan& plan, bool last);
  void learn_step(StepReport& report);
  // The largest divisor of run.micro_batch whose passes fit in memory, found by trying; 0 if none fits.
  Index fitting_micro_batch();
  void read_totals(StepReport& report);
  void update_squares();
  // Broadcasts rank 0's values in chunks; take(begin, values) receives them in order, in host memory.
  void require_fitting(const Snapshot& snapshot) const;
  void distribute_states(const Snapshot& snapshot);
  template <class V, class Take>
  void distribute(std::span<const V> values, Index size, const Take& take);
  void order_feed_forwards();
  std::vector<double> validation_losses();
  double product_flops(Capacity capacity) const;
  Matrix<double> step_squares() const {
    return dense(step_squares_.data(), config_.num_hidden_layers, config_.intermediate_size);
  }
  Gradients<T> gradients() const { return {&model_.layout(), gradient_.data()}; }
  // The weights of a capacity; with slopes their sums, in the arena until it is released.
  Weights weights_at(Capacity capacity);
  bool follows_slopes(Capacity capacity) const { return config_.elastic.slopes && capacity != full_capacity(config_); }
  // Adds a gradient at a capacity to those of tensors and slopes.
  void add_with_slopes(Vector<const float> gradient, Capacity capacity);
  Capacity capacity_of(double budget) const {
    return budget == 1 ? full_capacity(config_) : capacity_at(config_, budget);
  }
  Index batch() const { return stage_->settings.batch; }
  Index micro_batches() const { return batch() / recipe_.run.micro_batch; }
  double micro_batch_tokens() const { return static_cast<double>(recipe_.run.micro_batch * training_->length()); }

  std::unique_ptr<Stage> stage_;
  Recipe recipe_;
  ModelConfig config_;
  const TrainingData& data_;
  Stream& stream_;
  comm::Group& group_;
  Model<T> model_;
  Shards shards_;
  MasterWeights<T> weights_;
  Array<float> gradient_;
  std::unique_ptr<Optimizer> optimizer_;
  Objective<T> objective_;
  std::map<double, Recording> recordings_;  // of the passes over a micro-batch, by budget
  std::unique_ptr<Sequences> training_, held_out_;
  std::unique_ptr<Loader> loader_;
  // The frozen parent, if the stage names one.
  std::unique_ptr<Model<T>> parent_model_;
  std::unique_ptr<MasterWeights<T>> parent_;
  Array<double> totals_;
  Array<double> squares_, step_squares_;  // layers x units
  double squares_tokens_ = 0;
  const std::function<void(Index)> start_sums_ = [this](Index layer) { shards_.start_sums(gradient_.view(), layer); };
  Index step_ = 0;
  double tokens_ = 0;
  double validation_ = 0;
};

}  // namespace essh
