#include "essh/model/window_mixer.h"

#include <algorithm>

#include "essh/kernels/copy.h"
#include "essh/kernels/gemm.h"
#include "essh/kernels/rope.h"
#include "essh/kernels/window_attention.h"

namespace essh {
namespace {

template <class T>
struct WindowTape : MixerTape {
  Matrix<T> q, k, v, out;
  Matrix<Wide<T>> log_sum;
};

template <class T>
class WindowMixer : public Mixer<T> {
  using W = Wide<T>;

 public:
  WindowMixer(const ModelConfig& config, const ParameterLayout& layout, Index layer) : config_(config) {
    q_ = layout.find(layer, "self_attn.q_proj.weight");
    k_ = layout.find(layer, "self_attn.k_proj.weight");
    v_ = layout.find(layer, "self_attn.v_proj.weight");
    o_ = layout.find(layer, "self_attn.o_proj.weight");
  }

  void forward(const Pass& pass, const Weights<T>& weights, Matrix<const T> u, Matrix<T> x,
               std::unique_ptr<MixerTape>* tape) const override {
    auto kept = std::make_unique<WindowTape<T>>();
    project(pass, weights, u, {}, *kept);
    kept->log_sum = pass.arena.matrix<W>(pass.tokens(), config_.num_attention_heads);
    attend(pass, kept->q, kept->k, kept->v, 0, kept->out, kept->log_sum);
    add_output(pass, weights, kept->out, x);
    if (tape) *tape = std::move(kept);
  }

  void backward(const Pass& pass, const Weights<T>& weights, const Gradients<T>& gradients, Matrix<const T> u,
                Matrix<const T> d_x, const MixerTape& tape, Matrix<T> d_u) const override {
    const auto& kept = static_cast<const WindowTape<T>&>(tape);
    const auto mark = pass.arena.mark();
    const auto like_u = [&] { return pass.arena.matrix<T>(u.rows, u.cols); };
    const auto d_out = like_u(), d_q = like_u(), d_k = like_u(), d_v = like_u();
    launch(pass.stream, Gemm<T>{.a = d_x, .b = weights.matrix(o_), .c = d_out});
    launch(pass.stream,
           Gemm<T, W>{.a = d_x, .b = kept.out, .c = gradients.matrix(o_), .transpose_a = Transpose::Yes, .beta = 1});
    launch(pass.stream, WindowAttentionBackward<T>{.sequences = pass.sequences,
                                                   .length = pass.length,
                                                   .head_dim = config_.head_dim,
                                                   .window = config_.sliding_window,
                                                   .q = kept.q,
                                                   .k = kept.k,
                                                   .v = kept.v,
                                                   .out = kept.out,
                                                   .log_sum = kept.log_sum,
                                                   .d_out = d_out,
                                                   .d_q = d_q,
                                                   .d_k = d_k,
                                                   .d_v = d_v});
    for (const auto& rotated : {d_q, d_k}) rotate(pass, rotated, {}, Rotation::Inverse);
    double beta = 0;
    for (const auto& [weight, d_y] : {std::pair{q_, d_q}, std::pair{k_, d_k}, std::pair{v_, d_v}}) {
      launch(pass.stream,
             Gemm<T, W>{.a = d_y, .b = u, .c = gradients.matrix(weight), .transpose_a = Transpose::Yes, .beta = 1});
      launch(pass.stream, Gemm<T>{.a = d_y, .b = weights.matrix(weight), .c = d_u, .beta = beta});
      beta = 1;
    }
    pass.arena.release(mark);
  }

  Index state_size(Capacity) const override { return window_mixer_state(config_); }

  void extend(const Pass& pass, const Weights<T>& weights, Matrix<const T> u, Matrix<T> x, Matrix<W> state,
              Vector<const Index> positions) const override {
    WindowTape<T> step;
    project(pass, weights, u, positions, step);
    for (Index b = 0; b < pass.sequences; ++b) {
      const Index window = config_.sliding_window, width = config_.hidden_size;
      const auto keys = dense(state.row(b), window, width),
                 values = dense(state.row(b) + window * width, window, width);
      const auto rows = [&](Matrix<T> m) { return m.middle(b * pass.length, pass.length); };
      Pass one{pass.stream, pass.arena, pass.capacity, 1, pass.length};
      if (pass.length == 1) {
        append(pass, rows(step.k), rows(step.v), keys, values, positions[b]);
        // Softmax does not mind the order of the ring.
        const Index filled = std::min(positions[b] + 1, window);
        attend(one, rows(step.q), keys.top(filled), values.top(filled), filled - 1, rows(step.out), {});
        continue;
      }
      const Index past = std::min(positions[b], window - 1);
      const auto all_keys = pass.arena.matrix<T>(past + pass.length, width),
                 all_values = pass.arena.matrix<T>(past + pass.length, width);
      unroll(pass, keys, all_keys, positions[b] - past, past);
      unroll(pass, values, all_values, positions[b] - past, past);
      launch(pass.stream, Copy<T>{.from = rows(step.k), .to = all_keys.middle(past, pass.length)});
      launch(pass.stream, Copy<T>{.from = rows(step.v), .to = all_values.middle(past, pass.length)});
      attend(one, rows(step.q), all_keys, all_values, past, rows(step.out), {});
      append(pass, rows(step.k), rows(step.v), keys, values, positions[b]);
    }
    add_output(pass, weights, step.out, x);
  }

 private:
  void project(const Pass& pass, const Weights<T>& weights, Matrix<const T> u, Vector<const Index> positions,
               WindowTape<T>& kept) const {
    for (const auto& [out, weight] : {std::pair{&kept.q, q_}, std::pair{&kept.k, k_}, std::pair{&kept.v, v_}}) {
      *out = pass.arena.matrix<T>(u.rows, u.cols);
      launch(pass.stream, Gemm<T>{.a = u, .b = weights.matrix(weight), .c = *out, .transpose_b = Transpose::Yes});
    }
    kept.out = pass.arena.matrix<T>(u.rows, u.cols);
    rotate(pass, kept.q, positions, Rotation::Forward);
    rotate(pass, kept.k, positions, Rotation::Forward);
  }

  void rotate(const Pass& pass, Matrix<T> x, Vector<const Index> positions, Rotation rotation) const {
    launch(pass.stream, Rope<T>{.x = x,
                                .length = pass.length,
                                .head_dim = config_.head_dim,
                                .first = positions,
                                .theta = config_.rope_theta,
                                .rotation = rotation});
  }

  void attend(const Pass& pass, Matrix<const T> q, Matrix<const T> k, Matrix<const T> v, Index past, Matrix<T> out,
              Matrix<W> log_sum) const {
    launch(pass.stream, WindowAttentionForward<T>{.sequences = pass.sequences,
                                                  .queries = pass.length,
                                                  .past = past,
                                                  .head_dim = config_.head_dim,
                                                  .window = config_.sliding_window,
                                                  .q = q,
                                                  .k = k,
                                                  .v = v,
                                                  .out = out,
                                                  .log_sum = log_sum});
  }

  void add_output(const Pass& pass, const Weights<T>& weights, Matrix<const T> out, Matrix<T> x) const {
    launch(pass.stream, Gemm<T>{.a = out, .b = weights.matrix(o_), .c = x, .transpose_b = Transpose::Yes, .beta = 1});
  }

  // The last `window` of the new rows go to their places in the rings.
  void append(const Pass& pass, Matrix<const T> k, Matrix<const T> v, Matrix<W> keys, Matrix<W> values,
              Index position) const {
    const Index window = config_.sliding_window;
    for (Index row = std::max<Index>(0, k.rows - window); row < k.rows;) {
      const Index slot = (position + row) % window, run = std::min(k.rows - row, window - slot);
      launch(pass.stream, Copy<T>{.from = k.middle(row, run), .to = keys.middle(slot, run)});
      launch(pass.stream, Copy<T>{.from = v.middle(row, run), .to = values.middle(slot, run)});
      row += run;
    }
  }

  // `count` rows of a ring from position `first` on, in order, to the top of `out`.
  void unroll(const Pass& pass, Matrix<const W> ring, Matrix<T> out, Index first, Index count) const {
    const Index window = config_.sliding_window;
    for (Index row = 0; row < count;) {
      const Index slot = (first + row) % window, run = std::min(count - row, window - slot);
      launch(pass.stream, Copy<T>{.from = ring.middle(slot, run), .to = out.middle(row, run)});
      row += run;
    }
  }

  ModelConfig config_;
  std::size_t q_, k_, v_, o_;
};

}  // namespace

std::vector<ModelTensor> window_mixer_tensors(const ModelConfig& c) {
  std::vector<ModelTensor> list;
  for (const char* name : {"q", "k", "v", "o"}) {
    const bool out = *name == 'o';
    list.push_back({.name = fmt::format("self_attn.{}_proj.weight", name),
                    .rows = c.hidden_size,
                    .cols = c.hidden_size,
                    .initial = out ? Initial::NormalOut : Initial::Normal});
  }
  return list;
}

Index window_mixer_state(const ModelConfig& c) {
  return 2 * c.sliding_window * c.hidden_size;
}

Index window_mixer_work(const ModelConfig& c) {
  return 4 * c.hidden_size * c.hidden_size + 2 * c.sliding_window * c.hidden_size;
}

template <class T>
std::unique_ptr<Mixer<T>> make_window_mixer(const ModelConfig& config, const ParameterLayout& layout, Index layer) {
  return std::make_unique<WindowMixer<T>>(config, layout, layer);
}

template std::unique_ptr<Mixer<float>> make_window_mixer(const ModelConfig&, const ParameterLayout&, Index);
template std::unique_ptr<Mixer<double>> make_window_mixer(const ModelConfig&, const ParameterLayout&, Index);

}  // namespace essh
