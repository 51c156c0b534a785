#include "essh/model/attention_mixer.h"

#include <algorithm>

#include "essh/kernels/copy.h"
#include "essh/kernels/gemm.h"
#include "essh/kernels/rope.h"
#include "essh/kernels/window_attention.h"
#include "essh/kernels/window_step.h"
#include "essh/model/stacked_linear.h"

namespace essh {
namespace {

// Sizes of a layer's attention. Window 0 means all positions.
struct Sizes {
  Index hidden, heads, kv_heads, head_dim, window;
  double theta;

  Index query_width() const { return heads * head_dim; }
  Index row_width() const { return kv_heads * head_dim; }
};

Sizes sizes_of(const ModelConfig& c, Index layer) {
  const bool sliding = c.kind(layer) == MixerKind::SlidingAttention;
  const auto& a = sliding ? c.sliding_attention : c.full_attention;
  return {.hidden = c.hidden_size,
          .heads = a.num_attention_heads,
          .kv_heads = a.key_value_heads(),
          .head_dim = a.head_dim,
          .window = sliding ? c.sliding_window : 0,
          .theta = a.rope_theta};
}

template <class T>
struct AttentionTape : MixerTape {
  Matrix<T> q, k, v, out;
  Matrix<Wide<T>> log_sum;
};

template <class T>
class AttentionMixer : public Mixer<T> {
  using W = Wide<T>;

 public:
  AttentionMixer(const ModelConfig& config, const ParameterLayout& layout, Index layer)
      : sizes_(sizes_of(config, layer)) {
    q_ = layout.find(layer, "self_attn.q_proj.weight");
    k_ = layout.find(layer, "self_attn.k_proj.weight");
    v_ = layout.find(layer, "self_attn.v_proj.weight");
    o_ = layout.find(layer, "self_attn.o_proj.weight");
  }

  void forward(const Pass& pass, const Weights& weights, Matrix<const T> u, const Residual<T>& x, const Residual<T>& y,
               std::unique_ptr<MixerTape>* tape) const override {
    auto kept = std::make_unique<AttentionTape<T>>();
    project(pass, weights, u.rows, u, *kept);
    for (const auto& rotated : {kept->q, kept->k}) rotate(pass, rotated, pass.length, {}, Rotation::Forward);
    if (tape) kept->log_sum = pass.arena.matrix<W>(pass.tokens(), sizes_.heads);
    attend(pass, pass.sequences, pass.length, 0, kept->q, kept->k, kept->v, kept->out, kept->log_sum);
    add_output(pass, weights, kept->out, x, y);
    if (tape) *tape = std::move(kept);
  }

  void backward(const Pass& pass, const Weights& weights, const Gradients<T>& gradients, Matrix<const T> u,
                Matrix<const T> d_y, const MixerTape& tape, Matrix<T> d_u) const override {
    const auto& kept = static_cast<const AttentionTape<T>&>(tape);
    const auto mark = pass.arena.mark();
    const auto linear = projections();
    const auto d_out = pass.arena.matrix<T>(u.rows, sizes_.query_width()),
               d_qkv = pass.arena.matrix<T>(u.rows, linear.columns());
    const auto d_q = linear.part(d_qkv, 0), d_k = linear.part(d_qkv, 1), d_v = linear.part(d_qkv, 2);
    launch(pass.stream, Gemm<T>{.a = d_y, .b = weights[o_].as<T>(), .c = d_out});
    launch(pass.stream,
           Gemm<T, W>{.a = d_y, .b = kept.out, .c = gradients.matrix(o_), .transpose_a = Transpose::Yes, .beta = 1});
    launch(pass.stream, WindowAttentionBackward<T>{.sequences = pass.sequences,
                                                   .length = pass.length,
                                                   .head_dim = sizes_.head_dim,
                                                   .window = window_over(pass.length),
                                                   .q = kept.q,
                                                   .k = kept.k,
                                                   .v = kept.v,
                                                   .out = kept.out,
                                                   .log_sum = kept.log_sum,
                                                   .d_out = d_out,
                                                   .d_q = d_q,
                                                   .d_k = d_k,
                                                   .d_v = d_v});
    for (const auto& rotated : {d_q, d_k}) rotate(pass, rotated, pass.length, {}, Rotation::Inverse);
    linear.backward(pass, weights, gradients, u, d_qkv, {}, d_u);
    pass.arena.release(mark);
  }

  void extend(const Pass& pass, const Weights& weights, NormedResidual<T>& u, Vector<const W> next_gain,
              const SequenceBatch& sequences, std::size_t first_part) const override {
    AttentionTape<T> step;
    project(pass, weights, u.rows(), u, step);
    for (const auto& segment : sequences.segments) {
      const auto rows = [&](Matrix<T> m) { return m.middle(segment.first_row, segment.sequences * segment.length); };
      const auto positions = sequences.positions_of(segment);
      for (const auto& rotated : {step.q, step.k})
        rotate(pass, rows(rotated), segment.length, positions, Rotation::Forward);
      if (segment.length > 1) {
        for (Index b = 0; b < segment.sequences; ++b)
          extend_one(pass, segment.first_row + b * segment.length, segment.length, step, sequences,
                     segment.first_sequence + b, first_part);
        continue;
      }
      launch(pass.stream, WindowStep<T>{.head_dim = sizes_.head_dim,
                                        .window = window_over(sequences.longest),
                                        .rows = ring_rows(),
                                        .longest = sequences.longest,
                                        .q = rows(step.q),
                                        .k = rows(step.k),
                                        .v = rows(step.v),
                                        .keys = sequences.states<T>(sequences.entering, first_part, segment),
                                        .values = sequences.states<T>(sequences.entering, first_part + 1, segment),
                                        .positions = positions,
                                        .out = rows(step.out),
                                        .coded = is_coded(sequences)});
    }
    u.add_product(pass.stream, step.out, weights[o_], 1, pass.bits, next_gain);
  }

 private:
  StackedLinear projections() const {
    return {{q_, sizes_.query_width()}, {k_, sizes_.row_width()}, {v_, sizes_.row_width()}};
  }
  Index window_over(Index positions) const { return sizes_.window > 0 ? sizes_.window : positions; }
  bool is_coded(const SequenceBatch& sequences) const { return sequences.coded_windows && sizes_.window > 0; }
  // 0 for a growing cache.
  Index ring_rows() const { return sizes_.window > 0 ? sizes_.window + kSpareRows : 0; }

  // U: normalised rows, or a residual that is to be normalised.
  template <class U>
  void project(const Pass& pass, const Weights& weights, Index rows, const U& u, AttentionTape<T>& kept) const {
    const auto linear = projections();
    const auto qkv = pass.arena.matrix<T>(rows, linear.columns());
    linear.forward(pass, weights, u, qkv);
    kept.q = linear.part(qkv, 0);
    kept.k = linear.part(qkv, 1);
    kept.v = linear.part(qkv, 2);
    kept.out = pass.arena.matrix<T>(rows, sizes_.query_width());
  }

  void rotate(const Pass& pass, Matrix<T> x, Index length, Vector<const Index> positions, Rotation rotation) const {
    launch(pass.stream, Rope<T>{.x = x,
                                .length = length,
                                .head_dim = sizes_.head_dim,
                                .first = positions,
                                .theta = sizes_.theta,
                                .rotation = rotation});
  }

  void attend(const Pass& pass, Index count, Index queries, Index past, Matrix<const T> q, Matrix<const T> k,
              Matrix<const T> v, Matrix<T> out, Matrix<W> log_sum) const {
    launch(pass.stream, WindowAttentionForward<T>{.sequences = count,
                                                  .queries = queries,
                                                  .past = past,
                                                  .head_dim = sizes_.head_dim,
                                                  .window = window_over(past + queries),
                                                  .q = q,
                                                  .k = k,
                                                  .v = v,
                                                  .out = out,
                                                  .log_sum = log_sum});
  }

  // Several tokens of one sequence: rows [first, first + length) of the pass.
  void extend_one(const Pass& pass, Index first, Index length, const AttentionTape<T>& step,
                  const SequenceBatch& sequences, Index sequence, std::size_t first_part) const {
    const Index position = sequences.positions.host[sequence], width = sizes_.row_width(), ring = ring_rows();
    const auto rows = [&](Matrix<T> m) { return m.middle(first, length); };
    const auto cache = [&](std::size_t part, Index count) {
      return dense(reinterpret_cast<T*>(sequences.rows_of(first_part + part, sequence)), count, width);
    };
    if (ring == 0) {
      const auto keys = cache(0, position + length), values = cache(1, position + length);
      launch(pass.stream, Copy<T>{.from = rows(step.k), .to = keys.middle(position, length)});
      launch(pass.stream, Copy<T>{.from = rows(step.v), .to = values.middle(position, length)});
      return attend(pass, 1, length, position, rows(step.q), keys, values, rows(step.out), {});
    }
    const Index past = std::min(position, sizes_.window - 1);
    const auto mark = pass.arena.mark();
    Matrix<T> seen[2];
    for (std::size_t part : {0u, 1u}) {
      const auto fresh = rows(part == 0 ? step.k : step.v);
      seen[part] = pass.arena.matrix<T>(past + length, width);
      // Copies rows of positions [begin, end) between the ring and a matrix in order of position.
      const auto each_run = [&](Index begin, Index end, const auto& copy) {
        for (Index p = begin; p < end;) {
          const Index row = p % ring, run = std::min(end - p, ring - row);
          copy(p - begin, row, run);
          p += run;
        }
      };
      const auto coded_rows = [&](Index row) {
        return sequences.rows_of(first_part + part, sequence) + row * coded_row_bytes(width, sizes_.head_dim);
      };
      each_run(position - past, position, [&](Index at, Index row, Index run) {
        const auto to = seen[part].middle(at, run);
        if (is_coded(sequences))
          launch(pass.stream, LoadCodedRows<T>{.head_dim = sizes_.head_dim, .from = coded_rows(row), .to = to});
        else
          launch(pass.stream, Copy<T>{.from = cache(part, ring).middle(row, run), .to = to});
      });
      launch(pass.stream, Copy<T>{.from = fresh, .to = seen[part].middle(past, length)});
      const Index stored = std::min(length, ring);
      each_run(position + length - stored, position + length, [&](Index at, Index row, Index run) {
        const auto from = fresh.middle(length - stored + at, run);
        if (is_coded(sequences))
          launch(pass.stream, StoreCodedRows<T>{.head_dim = sizes_.head_dim, .from = from, .to = coded_rows(row)});
        else
          launch(pass.stream, Copy<T>{.from = from, .to = cache(part, ring).middle(row, run)});
      });
    }
    attend(pass, 1, length, past, rows(step.q), seen[0], seen[1], rows(step.out), {});
    pass.arena.release(mark);
  }

  void add_output(const Pass& pass, const Weights& weights, Matrix<const T> out, const Residual<T>& x,
                  const Residual<T>& y) const {
    add_product<T>(pass.stream, out, weights[o_], 1, pass.bits, x, y);
  }

  Sizes sizes_;
  std::size_t q_, k_, v_, o_;
};

}  // namespace

std::vector<ModelTensor> attention_mixer_tensors(const ModelConfig& c, Index layer) {
  const auto sizes = sizes_of(c, layer);
  std::vector<ModelTensor> list;
  for (const char* name : {"q", "k", "v"}) {
    list.push_back({.name = fmt::format("self_attn.{}_proj.weight", name),
                    .rows = *name == 'q' ? sizes.query_width() : sizes.row_width(),
                    .cols = sizes.hidden,
                    .stacked = *name != 'q'});
  }
  list.push_back({.name = "self_attn.o_proj.weight",
                  .rows = sizes.hidden,
                  .cols = sizes.query_width(),
                  .initial = initial_out(c)});
  return list;
}

std::vector<StatePart> attention_mixer_state(const ModelConfig& c, Index layer, const StateFormats& formats) {
  const auto sizes = sizes_of(c, layer);
  const bool coded = formats.coded_windows && sizes.window > 0;
  const Index columns =
      coded ? coded_row_bytes(sizes.row_width(), sizes.head_dim) / stored_bytes(formats.rows, 1) : sizes.row_width();
  const StatePart part{
      .kind = StatePart::Kind::Rows, .format = formats.rows, .columns = columns, .window = sizes.window};
  return {part, part};
}

Index attention_mixer_work(const ModelConfig& c, Index layer, Index context) {
  const auto sizes = sizes_of(c, layer);
  return 2 * sizes.hidden * (sizes.query_width() + sizes.row_width()) +
         2 * (sizes.window > 0 ? sizes.window : context) * sizes.query_width();
}

template <class T>
std::unique_ptr<Mixer<T>> make_attention_mixer(const ModelConfig& config, const ParameterLayout& layout, Index layer) {
  return std::make_unique<AttentionMixer<T>>(config, layout, layer);
}

template std::unique_ptr<Mixer<float>> make_attention_mixer(const ModelConfig&, const ParameterLayout&, Index);
template std::unique_ptr<Mixer<double>> make_attention_mixer(const ModelConfig&, const ParameterLayout&, Index);
template std::unique_ptr<Mixer<BFloat16>> make_attention_mixer(const ModelConfig&, const ParameterLayout&, Index);

}  // namespace essh
