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
// float32. Everything that a step depends on is in the snapshot: a run that resumes from one goes on bit by bit on the
// CPU.
//
// Several ranks make one trainer: its micro-batches go round the ranks, so that each is the same samples at the same
// capacity whatever their number; sums over them differ in rounding alone. Every call below is a collective, except of
// the plain values.
template <class T>
class Trainer {
 public:
  // `data`, `stream` and `group` outlive the trainer.
  Trainer(std::unique_ptr<Stage> stage, const Recipe& recipe, const ModelConfig& config, const TrainingData& data,
          Stream& stream, comm::Group& group);

  // Where the stage starts: these weights, fresh states of the optimizer.
  void start(const Parameters<float>& weights);
  // Where the stage asks for it, orders the feed-forward units of these weights by their importance over its
  // calibration tokens, and returns how many there were. The function at full capacity does not change.
  Index calibrate();
  // Where an earlier run of this stage stopped, with any number of ranks. Rank 0 gives the snapshot, the others get
  // theirs from it. A snapshot of other data, another model or another algorithm of the optimizer is refused.
  void resume(const Snapshot& snapshot);
  // Complete on rank 0; on the others without its arrays.
  Snapshot snapshot();

  bool finished() const { return step_ >= steps(); }
  const char* stage() const { return stage_->settings.name; }
  Index step_count() const { return step_; }
  Index steps() const { return stage_->settings.schedule.steps; }
  double tokens() const { return tokens_; }
  Index position() const { return loader_->position(); }
  // Passes over samples: those of a batch that went wrong.
  void skip_to(Index position) { loader_->seek(position); }
  StepReport step();

  // Mean loss of the named tiers on the validation split.
  std::map<std::string, double> validate();
  // The weights as they stand, in host memory.
  Parameters<float> parameters() const;
  const ModelConfig& config() const { return config_; }
  const Optimizer& optimizer() const { return *optimizer_; }
  // Of the arena of the passes so far.
  std::size_t activation_bytes() const { return objective_.memory(); }

 private:
  // Sums of one step on the device.
  static constexpr Index kFull = 0, kReduced = kLossTotals, kSquaredNorm = 2 * kLossTotals, kTotals = kSquaredNorm + 1;

  // Whether a micro-batch of a step is this rank's, and whether it is its last.
  bool is_mine(Index micro_batch) const { return micro_batch % group_.size() == group_.rank(); }
  bool is_last(Index micro_batch) const { return micro_batch + group_.size() >= micro_batches(); }
  // What a micro-batch adds to the report, whichever rank does it.
  void count(const MicroBatchPlan& plan, StepReport& report);
  // All passes over one micro-batch. `last`: of this rank's micro-batches of the step.
  void learn(const TokenRows& rows, const MicroBatchPlan& plan, bool last);
  void learn_step(StepReport& report);
  // The largest divisor of run.micro_batch whose passes fit into memory, found by making them; 0 when none does.
  Index fitting_micro_batch();
  void read_totals(StepReport& report);
  void update_squares();
  // From rank 0's values to the other ranks, piece by piece; take(begin, values) gets them in order, in host memory.
  template <class V, class Take>
  void distribute(std::span<const V> values, Index size, const Take& take);
  void order_feed_forwards();
  std::vector<double> validation_losses();
  double product_flops(Capacity capacity) const;
  Matrix<double> step_squares() const {
    return dense(step_squares_.data(), config_.num_hidden_layers, config_.intermediate_size);
  }
  Gradients<T> gradients() const { return {&model_.layout(), gradient_.data()}; }
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
  std::unique_ptr<Sequences> training_, held_out_;
  std::unique_ptr<Loader> loader_;
  // The frozen parent, when the stage names one.
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
