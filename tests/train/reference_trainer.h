#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <vector>

#include "essh/data/loader.h"
#include "essh/model/initialise.h"
#include "essh/model/model.h"
#include "essh/train/trainer.h"

namespace essh {

// Algorithm 1 of the paper and shared refinement in double, without the chunks of logits, buckets, ranks and devices of
// Trainer. No ordering: units of nearly equal importance swap by rounding.
class ReferenceTrainer {
 public:
  ReferenceTrainer(const Stage::Settings& stage, const Recipe& recipe, const ModelConfig& config,
                   const TrainingData& data, const Parameters<float>* parent = nullptr)
      : stage_(stage),
        recipe_(recipe),
        config_(config),
        data_(data),
        model_(config),
        weights_(config),
        gradient_(config),
        first_(config),
        second_(config),
        sampler_(recipe.elastic, config, recipe.run.seed, recipe.run.steps),
        sequences_(data.training(stage.seed)),
        position_(stage.first_sequence) {
    Parameters<float> start(config);
    initialise(start, config, recipe.run.seed);
    std::copy_n(start.data(), start.layout().size(), weights_.data());
    const auto& layout = weights_.layout();
    for (std::size_t i = 0; i < layout.tensors().size() && config.elastic.slopes; ++i) {
      const auto& name = layout.tensors()[i].name;
      if (!name.ends_with(".slope")) slopes_[i] = layout.find(-1, name + ".slope");
    }
    if (parent) std::copy_n(parent->data(), parent->layout().size(), parent_.emplace(config).data());
  }

  // Weights and moments of another stage.
  void inherit(const ReferenceTrainer& before) {
    for (const auto& [from, to] :
         {std::pair(&before.weights_, &weights_), {&before.first_, &first_}, {&before.second_, &second_}})
      std::copy_n(from->data(), from->layout().size(), to->data());
    inherited_ = before.step_;
  }

  StepReport pretraining_step() {
    const auto& e = recipe_.elastic;
    begin_step(recipe_.run.batch);
    const double tokens_seen = static_cast<double>(step_) / scale_;
    for (const double budget : sampler_.draw(step_, tokens_seen, recipe_.run.batch / recipe_.run.micro_batch)) {
      const auto batch = next_batch();
      if (parent_) {
        const auto teacher = log_probabilities(batch, full_capacity(config_), parent_->weights());
        if (budget == 1)
          learn(batch, full_capacity(config_), {.label = e.label, .kl = e.kl}, teacher);
        else
          learn(batch, capacity_at(config_, budget),
                {.label = e.label, .kl = e.kl, .ffn_gradient = e.ffn_scale, .mixer_gradient = e.mixer_scale}, teacher);
      } else if (budget == 1) {
        learn(batch, full_capacity(config_), {});
      } else {
        const auto teacher = log_probabilities(batch, full_capacity(config_));
        if (e.joint) learn(batch, full_capacity(config_), {});
        learn(batch, capacity_at(config_, budget),
              {.label = e.label, .kl = e.kl, .ffn_gradient = e.ffn_scale, .mixer_gradient = e.mixer_scale}, teacher);
      }
      arena_.release();
    }
    return end_step();
  }

  // Every micro-batch at the capacity that teaches (full by default) and at one other.
  StepReport refinement_step(double budget, double teacher_budget = 1) {
    const auto upper = teacher_budget == 1 ? full_capacity(config_) : capacity_at(config_, teacher_budget);
    begin_step(recipe_.refine.batch);
    for (Index i = 0; i < recipe_.refine.batch / recipe_.run.micro_batch; ++i) {
      const auto batch = next_batch();
      const auto teacher = log_probabilities(batch, upper);
      learn(batch, upper, {});
      learn(batch, capacity_at(config_, budget),
            {.label = recipe_.refine.label,
             .kl = recipe_.refine.kl,
             .tv = recipe_.refine.tv,
             .ffn_gradient = recipe_.elastic.ffn_scale},
            teacher);
      arena_.release();
    }
    return end_step();
  }

  // Mean loss of every tier on the validation split.
  std::map<std::string, double> validate() {
    const Index windows = std::min(recipe_.run.validation_windows, data_.validation_count());
    const auto held_out = data_.validation();
    const auto batch = read_batch(*held_out, 0, windows);
    std::map<std::string, double> losses;
    for (const auto& tier : tiers_of(config_)) {
      const auto log_p = log_probabilities(batch, tier.capacity);
      double sum = 0;
      for (Index r = 0; r < log_p.rows; ++r) sum -= log_p(r, batch.targets[static_cast<std::size_t>(r)]);
      losses[tier.name] = sum / static_cast<double>(log_p.rows);
      arena_.release();
    }
    return losses;
  }

 private:
  void begin_step(Index sequences) {
    report_ = {};
    scale_ = 1 / static_cast<double>(sequences * recipe_.data.context);
    std::fill_n(gradient_.data(), gradient_.layout().size(), 0.0);
  }

  Batch next_batch() {
    auto batch = read_batch(*sequences_, position_, recipe_.run.micro_batch);
    position_ += batch.rows;
    return batch;
  }

  // Clips, then AdamW or Muon.
  StepReport end_step() {
    const auto& o = recipe_.optimizer;
    report_.full_loss /= std::max<double>(1, static_cast<double>(report_.full_tokens));
    report_.reduced_loss /= std::max<double>(1, static_cast<double>(report_.reduced_tokens));
    report_.divergence /=
        std::max<double>(1, static_cast<double>(report_.reduced_tokens + (parent_ ? report_.full_tokens : 0)));
    double squares = 0;
    for (Index i = 0; i < gradient_.layout().size(); ++i) squares += gradient_.data()[i] * gradient_.data()[i];
    report_.norm = std::sqrt(squares);
    const double clip = report_.norm > o.clip ? o.clip / report_.norm : 1, peak = stage_.schedule.rate(step_);
    ++step_;
    for (std::size_t tensor = 0; tensor < weights_.layout().tensors().size(); ++tensor) {
      const auto& spec = weights_.layout().tensors()[tensor];
      const bool decays = stage_.decay == DecayGroups::Refinement
                              ? spec.rank == 2
                              : spec.role == Role::Matrix || spec.role == Role::ZeroLag;
      double rate = spec.role == Role::Embedding ? o.embedding_rate * peak : peak;
      if (spec.name.ends_with(".slope")) rate *= o.slope_rate;
      if (o.algorithm == "muon" && spec.role == Role::Matrix && !spec.name.ends_with(".slope")) {
        muon_step(tensor, clip, rate, decays ? o.weight_decay : 0);
        continue;
      }
      const auto w = weights_.tensor(tensor), g = gradient_.tensor(tensor), m = first_.tensor(tensor),
                 v = second_.tensor(tensor);
      for (std::size_t i = 0; i < w.size(); ++i) {
        m[i] = o.beta1 * m[i] + (1 - o.beta1) * clip * g[i];
        v[i] = o.beta2 * v[i] + (1 - o.beta2) * clip * clip * g[i] * g[i];
        const auto age = static_cast<double>(inherited_ + step_);
        const double mean = m[i] / (1 - std::pow(o.beta1, age)), square = v[i] / (1 - std::pow(o.beta2, age));
        w[i] -= rate * (mean / (std::sqrt(square) + o.eps) + (decays ? o.weight_decay : 0) * w[i]);
      }
    }
    report_.step = step_;
    return report_;
  }

  using Rows = std::vector<std::vector<double>>;
  static Rows transposed(const Rows& x) {
    Rows y(x.front().size(), std::vector<double>(x.size()));
    for (std::size_t r = 0; r < x.size(); ++r) {
      for (std::size_t c = 0; c < x[r].size(); ++c) y[c][r] = x[r][c];
    }
    return y;
  }
  static Rows product(const Rows& x, const Rows& y) {
    Rows z(x.size(), std::vector<double>(y.front().size()));
    for (std::size_t r = 0; r < x.size(); ++r) {
      for (std::size_t i = 0; i < y.size(); ++i) {
        for (std::size_t c = 0; c < z[r].size(); ++c) z[r][c] += x[r][i] * y[i][c];
      }
    }
    return z;
  }
  // X <- 3.4445 X - 4.775 X X^T X + 2.0315 X X^T X X^T X, five times, from X of norm 1.
  static Rows orthogonal(Rows x) {
    if (x.size() < x.front().size()) return transposed(orthogonal(transposed(x)));
    double squares = 0;
    for (const auto& row : x) {
      for (const double value : row) squares += value * value;
    }
    for (auto& row : x) {
      for (double& value : row) value = squares > 0 ? value / std::sqrt(squares) : 0;
    }
    for (int step = 0; step < 5; ++step) {
      const auto gram = product(transposed(x), x), cube = product(x, gram), fifth = product(cube, gram);
      for (std::size_t r = 0; r < x.size(); ++r) {
        for (std::size_t c = 0; c < x[r].size(); ++c)
          x[r][c] = 3.4445 * x[r][c] - 4.775 * cube[r][c] + 2.0315 * fifth[r][c];
      }
    }
    return x;
  }

  // Nesterov momentum, orthogonalised.
  void muon_step(std::size_t tensor, double clip, double rate, double decay) {
    const auto& spec = weights_.layout().tensors()[tensor];
    const auto w = weights_.tensor(tensor), g = gradient_.tensor(tensor), m = first_.tensor(tensor);
    const double beta = recipe_.optimizer.momentum;
    const auto at = [&](Index r, Index c) { return static_cast<std::size_t>(r * spec.cols + c); };
    for (std::size_t i = 0; i < m.size(); ++i) m[i] = beta * m[i] + (1 - beta) * clip * g[i];
    Rows direction;
    for (Index r = 0; r < spec.rows; ++r) {
      direction.emplace_back();
      for (Index c = 0; c < spec.cols; ++c)
        direction.back().push_back(beta * m[at(r, c)] + (1 - beta) * clip * g[at(r, c)]);
    }
    const double scale = 0.2 * std::sqrt(static_cast<double>(std::max(spec.rows, spec.cols)));
    direction = orthogonal(direction);
    for (Index r = 0; r < spec.rows; ++r) {
      for (Index c = 0; c < spec.cols; ++c) {
        const double step = scale * direction[static_cast<std::size_t>(r)][static_cast<std::size_t>(c)];
        w[at(r, c)] -= rate * (step + decay * w[at(r, c)]);
      }
    }
  }

  Pass pass_over(const Batch& batch, Capacity capacity) {
    return {stream_, arena_, capacity, batch.rows, batch.length};
  }

  // Replaces logits by log p.
  void normalise(Matrix<double> logits) {
    for (Index r = 0; r < logits.rows; ++r) {
      double largest = -INFINITY, sum = 0;
      for (Index c = 0; c < logits.cols; ++c) largest = std::max(largest, logits(r, c));
      for (Index c = 0; c < logits.cols; ++c) sum += std::exp(logits(r, c) - largest);
      for (Index c = 0; c < logits.cols; ++c) logits(r, c) -= largest + std::log(sum);
    }
  }

  // How far along the slopes: the squared share of the units that are missing.
  double along(Capacity capacity) const {
    const double kept = static_cast<double>(capacity.ffn) / static_cast<double>(config_.intermediate_size);
    return (1 - kept) * (1 - kept);
  }
  // The weights of a capacity, each tensor moved along its slope, if it has one.
  Parameters<double> at(Capacity capacity) const {
    auto moved = weights_;
    for (const auto& [tensor, companion] : slopes_) {
      const auto values = moved.tensor(tensor);
      const auto slope = weights_.tensor(companion);
      for (std::size_t k = 0; k < values.size(); ++k) values[k] += along(capacity) * slope[k];
    }
    return moved;
  }

  Matrix<double> log_probabilities(const Batch& batch, Capacity capacity) {
    return log_probabilities(batch, capacity, at(capacity).weights());
  }
  Matrix<double> log_probabilities(const Batch& batch, Capacity capacity, const Weights& weights) {
    const auto pass = pass_over(batch, capacity);
    const auto hidden = model_.forward(pass, weights, {batch.inputs.data(), std::ssize(batch.inputs)}, nullptr);
    const auto logits = arena_.matrix<double>(hidden.rows, config_.vocab_size);
    model_.head(pass, weights, hidden, logits);
    normalise(logits);
    return logits;
  }

  // Adds the gradient of label * CE + kl * KL(teacher || p) + tv * TV(teacher, p) over the tokens of a micro-batch. The
  // teacher (log t) has no gradient.
  void learn(const Batch& batch, Capacity capacity, const ObjectiveWeights& counts, Matrix<const double> teacher = {}) {
    const auto pass = pass_over(batch, capacity);
    const Vector<const std::int32_t> inputs{batch.inputs.data(), std::ssize(batch.inputs)};
    const auto moved = at(capacity);
    const auto weights = moved.weights();
    Model<double>::Tape tape;
    const auto hidden = model_.forward(pass, weights, inputs, &tape);
    const auto logits = arena_.matrix<double>(hidden.rows, config_.vocab_size),
               d_hidden = arena_.matrix<double>(hidden.rows, hidden.cols);
    model_.head(pass, weights, hidden, logits);
    normalise(logits);
    // In refinement the pass without a teacher is reported as the full one at any capacity.
    const bool full = teacher.empty() || capacity == full_capacity(config_);
    for (Index r = 0; r < logits.rows; ++r) {
      const Index target = batch.targets[static_cast<std::size_t>(r)];
      (full ? report_.full_loss : report_.reduced_loss) -= logits(r, target);
      ++(full ? report_.full_tokens : report_.reduced_tokens);
      const auto p = [&](Index c) { return std::exp(logits(r, c)); };
      const auto t = [&](Index c) { return teacher.empty() ? 0 : std::exp(teacher(r, c)); };
      const auto sign = [&](Index c) { return p(c) > t(c) ? 1.0 : -1.0; };
      double kl = 0, tv = 0, mean_sign = 0;
      for (Index c = 0; c < logits.cols && !teacher.empty(); ++c) {
        kl += t(c) * (teacher(r, c) - logits(r, c));
        tv += std::abs(t(c) - p(c)) / 2;
        mean_sign += p(c) * sign(c);
      }
      if (counts.kl > 0 || counts.tv > 0) report_.divergence += counts.kl > 0 ? kl : tv;
      for (Index c = 0; c < logits.cols; ++c) {
        const double d_label = p(c) - (c == target ? 1 : 0), d_kl = p(c) - t(c),
                     d_tv = p(c) * (sign(c) - mean_sign) / 2;
        logits(r, c) = scale_ * (counts.label * d_label + counts.kl * d_kl + counts.tv * d_tv);
      }
    }
    Parameters<double> own(config_);
    const Gradients<double> gradients{&own.layout(), own.data()};
    model_.head_backward(pass, weights, gradients, hidden, logits, d_hidden);
    model_.backward(pass, weights, gradients, inputs, tape, d_hidden);
    for (std::size_t tensor = 0; tensor < own.layout().tensors().size(); ++tensor) {
      const auto from = own.tensor(tensor), to = gradient_.tensor(tensor);
      const double scale = gradient_scale(own.layout().tensors()[tensor].name, counts);
      for (std::size_t i = 0; i < from.size(); ++i) to[i] += scale * from[i];
      if (!slopes_.contains(tensor)) continue;
      const auto slope = gradient_.tensor(slopes_.at(tensor));
      for (std::size_t i = 0; i < from.size(); ++i) slope[i] += along(capacity) * scale * from[i];
    }
  }

  // alpha_ff for every parameter of a feed-forward; alpha_mix for every parameter of a spectral mixer, including
  // tables, biases and blends; 1 for attention, embedding and norms.
  static double gradient_scale(const std::string& name, const ObjectiveWeights& counts) {
    if (name.find(".mlp.") != std::string::npos) return counts.ffn_gradient;
    return name.find(".mixer.") != std::string::npos ? counts.mixer_gradient : 1;
  }

  Stage::Settings stage_;
  const Recipe& recipe_;
  ModelConfig config_;
  const TrainingData& data_;
  Model<double> model_;
  Parameters<double> weights_, gradient_, first_, second_;
  std::map<std::size_t, std::size_t> slopes_;  // by tensor
  std::optional<Parameters<double>> parent_;
  CapacitySampler sampler_;
  std::unique_ptr<Sequences> sequences_;
  Stream stream_ = cpu_stream(1);
  Arena arena_{Device::Cpu};
  Index position_;
  Index step_ = 0, inherited_ = 0;
  StepReport report_;
  double scale_ = 1;  // weight of one token's loss
};

// Reports of some steps, and the validation after them.
struct Curve {
  std::vector<StepReport> reports;
  std::map<std::string, double> losses;
};

// Largest deviations from the reference, relative to its values.
struct CurveErrors {
  double loss = 0;        // of steps and of validation
  double norm = 0;        // of the gradient
  double divergence = 0;  // from the teacher
};
inline CurveErrors compare(const Curve& curve, const Curve& exact) {
  CurveErrors errors;
  const auto see = [](double& most, double found, double wanted) {
    most = std::isfinite(found) ? std::max(most, std::abs(found - wanted) / std::max(wanted, 1e-3)) : INFINITY;
  };
  for (std::size_t i = 0; i < exact.reports.size(); ++i) {
    const auto &a = curve.reports[i], &b = exact.reports[i];
    EXPECT_EQ(a.full_tokens, b.full_tokens);
    EXPECT_EQ(a.reduced_tokens, b.reduced_tokens);
    if (b.full_tokens > 0) see(errors.loss, a.full_loss, b.full_loss);
    if (b.reduced_tokens > 0) see(errors.loss, a.reduced_loss, b.reduced_loss);
    see(errors.norm, a.norm, b.norm);
    see(errors.divergence, a.divergence, b.divergence);
  }
  for (const auto& [tier, loss] : exact.losses) see(errors.loss, curve.losses.at(tier), loss);
  return errors;
}

}  // namespace essh
