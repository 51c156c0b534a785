#include "essh/model/window_mixer.h"

#include <algorithm>

#include "essh/kernels/copy.h"
#include "essh/kernels/gemm.h"
#include "essh/kernels/rope.h"
#include "essh/kernels/row_pointers.h"
#include "essh/kernels/window_attention.h"
#include "essh/kernels/window_step.h"
#include "essh/model/stacked_linear.h"

namespace essh {
namespace {

template <class T>
struct WindowTape : MixerTape {
  Matrix<T> qkv;  // queries, keys and values, side by side
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

  void forward(const Pass& pass, const Weights<T>& weights, Matrix<const T> u, Matrix<const T> x, Matrix<T> y,
               std::unique_ptr<MixerTape>* tape) const override {
    auto kept = std::make_unique<WindowTape<T>>();
    project(pass, weights, u, {}, *kept);
    kept->log_sum = pass.arena.matrix<W>(pass.tokens(), config_.num_attention_heads);
    attend(pass, kept->q, kept->k, kept->v, 0, kept->out, kept->log_sum);
    add_output(pass, weights, kept->out, x, y);
    if (tape) *tape = std::move(kept);
  }

  void backward(const Pass& pass, const Weights<T>& weights, const Gradients<T>& gradients, Matrix<const T> u,
                Matrix<const T> d_y, const MixerTape& tape, Matrix<T> d_u) const override {
    const auto& kept = static_cast<const WindowTape<T>&>(tape);
    const auto mark = pass.arena.mark();
    const auto linear = projections();
    const auto d_out = pass.arena.matrix<T>(u.rows, u.cols), d_qkv = pass.arena.matrix<T>(u.rows, linear.columns());
    const auto d_q = linear.part(d_qkv, 0), d_k = linear.part(d_qkv, 1), d_v = linear.part(d_qkv, 2);
    launch(pass.stream, Gemm<T>{.a = d_y, .b = weights.matrix(o_), .c = d_out});
    launch(pass.stream,
           Gemm<T, W>{.a = d_y, .b = kept.out, .c = gradients.matrix(o_), .transpose_a = Transpose::Yes, .beta = 1});
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
    linear.backward(pass, weights, gradients, u, d_qkv, 1, d_u);
    pass.arena.release(mark);
  }

  Index state_size(Capacity) const override {
    return window_mixer_state(config_) * static_cast<Index>(sizeof(T)) / static_cast<Index>(sizeof(W));
  }

  void extend(const Pass& pass, const Weights<T>& weights, Matrix<const T> u, Matrix<T> x, Matrix<W> state,
              Positions positions) const override {
    WindowTape<T> step;
    project(pass, weights, u, positions.device, step);
    // The rings are of the model's own type: keys, then values.
    const Index window = config_.sliding_window, width = config_.hidden_size, ring = window * width;
    const Matrix<T> rings{reinterpret_cast<T*>(state.data), state.rows, 2 * ring,
                          state.stride * static_cast<Index>(sizeof(W) / sizeof(T))};
    if (pass.length == 1) {
      const auto pointers = [&](Index first) {
        const auto rows = pass.arena.vector<T*>(rings.rows);
        launch(pass.stream, RowPointers<T>{.matrix = rings.block(0, rings.rows, first, ring), .pointers = rows});
        return rows;
      };
      launch(pass.stream, WindowStep<T>{.head_dim = config_.head_dim,
                                        .window = window,
                                        .rows = window,
                                        .longest = window,
                                        .q = step.q,
                                        .k = step.k,
                                        .v = step.v,
                                        .keys = pointers(0),
                                        .values = pointers(ring),
                                        .positions = positions.device,
                                        .out = step.out});
    } else {
      for (Index b = 0; b < pass.sequences; ++b) {
        const auto keys = dense(rings.row(b), window, width), values = dense(rings.row(b) + ring, window, width);
        const auto rows = [&](Matrix<T> m) { return m.middle(b * pass.length, pass.length); };
        const Pass one{pass.stream, pass.arena, pass.capacity, 1, pass.length};
        const Index position = positions.host[b], past = std::min(position, window - 1);
        const auto all_keys = pass.arena.matrix<T>(past + pass.length, width),
                   all_values = pass.arena.matrix<T>(past + pass.length, width);
        unroll(pass, keys, all_keys, position - past, past);
        unroll(pass, values, all_values, position - past, past);
        launch(pass.stream, Copy<T>{.from = rows(step.k), .to = all_keys.middle(past, pass.length)});
        launch(pass.stream, Copy<T>{.from = rows(step.v), .to = all_values.middle(past, pass.length)});
        attend(one, rows(step.q), all_keys, all_values, past, rows(step.out), {});
        append(pass, rows(step.k), rows(step.v), keys, values, position);
      }
    }
    add_output(pass, weights, step.out, x, x);
  }

 private:
  StackedLinear projections() const {
    return StackedLinear({{q_, config_.hidden_size}, {k_, config_.hidden_size}, {v_, config_.hidden_size}});
  }

  void project(const Pass& pass, const Weights<T>& weights, Matrix<const T> u, Vector<const Index> positions,
               WindowTape<T>& kept) const {
    const auto linear = projections();
    kept.qkv = pass.arena.matrix<T>(u.rows, linear.columns());
    linear.forward(pass, weights, u, kept.qkv);
    kept.q = linear.part(kept.qkv, 0);
    kept.k = linear.part(kept.qkv, 1);
    kept.v = linear.part(kept.qkv, 2);
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

  void add_output(const Pass& pass, const Weights<T>& weights, Matrix<const T> out, Matrix<const T> x,
                  Matrix<T> y) const {
    launch(pass.stream,
           Gemm<T>{.a = out, .b = weights.matrix(o_), .c = y, .transpose_b = Transpose::Yes, .beta = 1, .addend = x});
  }

  // The last `window` of the new rows go to their places in the rings.
  void append(const Pass& pass, Matrix<const T> k, Matrix<const T> v, Matrix<T> keys, Matrix<T> values,
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
  void unroll(const Pass& pass, Matrix<const T> ring, Matrix<T> out, Index first, Index count) const {
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
template std::unique_ptr<Mixer<BFloat16>> make_window_mixer(const ModelConfig&, const ParameterLayout&, Index);

}  // namespace essh
