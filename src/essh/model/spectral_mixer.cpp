#include "essh/model/spectral_mixer.h"

#include <cmath>
#include <type_traits>

#include "essh/kernels/gates.h"
#include "essh/kernels/gemm.h"
#include "essh/kernels/row_pointers.h"
#include "essh/kernels/selective_mix.h"
#include "essh/kernels/selective_scan.h"
#include "essh/kernels/value_blend.h"
#include "essh/model/stacked_linear.h"

namespace essh {
namespace {

template <class T>
struct SpectralTape : MixerTape {
  Matrix<T> projection;  // v0 and the logits of write, read and clock, side by side
  Matrix<T> z;
  Matrix<Wide<T>> write, read, clock, boundary;
};

template <class T>
class SpectralMixer : public Mixer<T> {
  using W = Wide<T>;

 public:
  SpectralMixer(const ModelConfig& config, const ParameterLayout& layout, Index layer)
      : config_(config), modes_(config.spectral_modes), width_(config.channel_width) {
    const auto find = [&](const char* name) { return layout.find(layer, name); };
    value_ = find("mixer.value_proj.weight");
    write_ = find("mixer.write_proj.weight");
    read_ = find("mixer.read_proj.weight");
    clock_ = find("mixer.clock_proj.weight");
    write_bias_ = find("mixer.write_proj.bias");
    read_bias_ = find("mixer.read_proj.bias");
    clock_bias_ = find("mixer.clock_proj.bias");
    decay_ = find("mixer.decay");
    frequency_ = find("mixer.frequency");
    readout_cos_ = find("mixer.readout_cos");
    readout_sin_ = find("mixer.readout_sin");
    zero_lag_ = find("mixer.zero_lag");
    blend_ = find("mixer.value_blend");
    out_ = find("mixer.out_proj.weight");
  }

  void forward(const Pass& pass, const Weights<T>& weights, Matrix<const T> u, Matrix<const T> x, Matrix<T> y,
               std::unique_ptr<MixerTape>* tape) const override {
    if (!tape) return mix(pass, weights, u, x, y, {});
    const Index state = state_size(pass.capacity);
    auto kept = std::make_unique<SpectralTape<T>>();
    project(pass, weights, u, *kept);
    kept->boundary = pass.arena.matrix<W>(pass.sequences * scan_chunks(pass.length), state);
    const auto mark = pass.arena.mark();
    launch(pass.stream, SelectiveScanForward<T>{.sequences = pass.sequences,
                                                .length = pass.length,
                                                .width = width_,
                                                .v = blended(pass, weights, *kept),
                                                .write = kept->write,
                                                .read = kept->read,
                                                .clock = kept->clock,
                                                .modes = tables(weights, pass.capacity),
                                                .entering = {},
                                                .z = kept->z,
                                                .boundary = kept->boundary,
                                                .leaving = {}});
    add_output(pass, weights, kept->z, x, y);
    pass.arena.release(mark);
    *tape = std::move(kept);
  }

  void backward(const Pass& pass, const Weights<T>& weights, const Gradients<T>& gradients, Matrix<const T> u,
                Matrix<const T> d_y, const MixerTape& tape, Matrix<T> d_u) const override {
    const auto& kept = static_cast<const SpectralTape<T>&>(tape);
    const auto linear = projections(pass.capacity);
    const Index channels = pass.capacity.channels, values = channels * width_, rows = channels * modes_,
                tokens = pass.tokens();
    const double scale = pass.mixer_gradient_scale, out_scale = 1 / std::sqrt(static_cast<double>(channels));
    const auto mark = pass.arena.mark();

    const auto d_z = pass.arena.matrix<T>(tokens, values);
    launch(pass.stream,
           Gemm<T>{.a = d_y, .b = kept_columns(pass, weights.matrix(out_), values), .c = d_z, .alpha = out_scale});
    launch(pass.stream, Gemm<T, W>{.a = d_y,
                                   .b = kept.z,
                                   .c = gradients.matrix(out_).left(values),
                                   .transpose_a = Transpose::Yes,
                                   .alpha = out_scale * scale,
                                   .beta = 1});

    const auto d_projection = pass.arena.matrix<T>(tokens, linear.columns());
    const auto d_v = linear.part(d_projection, 0);
    const auto d_write = pass.arena.matrix<W>(tokens, rows), d_read = pass.arena.matrix<W>(tokens, rows),
               d_clock = pass.arena.matrix<W>(tokens, rows);
    launch(pass.stream, SelectiveScanBackward<T>{.sequences = pass.sequences,
                                                 .length = pass.length,
                                                 .width = width_,
                                                 .v = blended(pass, weights, kept),
                                                 .write = kept.write,
                                                 .read = kept.read,
                                                 .clock = kept.clock,
                                                 .modes = tables(weights, pass.capacity),
                                                 .boundary = kept.boundary,
                                                 .d_z = d_z,
                                                 .d_leaving = {},
                                                 .d_v = d_v,
                                                 .d_write = d_write,
                                                 .d_read = d_read,
                                                 .d_clock = d_clock,
                                                 .d_modes = table_gradients(gradients, pass.capacity),
                                                 .d_entering = {}});
    launch(pass.stream, ValueBlendBackward<T>{.v0 = linear.part(kept.projection, 0),
                                              .blend = weights.vector(blend_).first(channels),
                                              .d_v = d_v,
                                              .d_v0 = d_v,
                                              .d_blend = gradients.vector(blend_).first(channels),
                                              .width = width_,
                                              .eps = config_.value_norm_eps});
    launch(pass.stream, GatesBackward<T>{.write = kept.write,
                                         .read = kept.read,
                                         .clock = kept.clock,
                                         .d_write = d_write,
                                         .d_read = d_read,
                                         .d_clock = d_clock,
                                         .d_write_logits = linear.part(d_projection, 1),
                                         .d_read_logits = linear.part(d_projection, 2),
                                         .d_clock_logits = linear.part(d_projection, 3),
                                         .d_write_bias = gradients.vector(write_bias_).first(rows),
                                         .d_read_bias = gradients.vector(read_bias_).first(rows),
                                         .d_clock_bias = gradients.vector(clock_bias_).first(rows)});
    linear.backward(pass, weights, gradients, u, d_projection, scale, d_u);
    pass.arena.release(mark);
  }

  Index state_size(Capacity capacity) const override { return spectral_mixer_state(config_, capacity); }

  void extend(const Pass& pass, const Weights<T>& weights, Matrix<const T> u, Matrix<T> x, Matrix<W> state,
              Positions) const override {
    if (pass.length > 1) return mix(pass, weights, u, x, x, state);
    SpectralTape<T> kept;
    project(pass, weights, u, kept);
    const auto states = pointers(pass, state);
    launch(pass.stream, SelectiveStep<T>{.width = width_,
                                         .v = blended(pass, weights, kept),
                                         .write = kept.write,
                                         .read = kept.read,
                                         .clock = kept.clock,
                                         .modes = tables(weights, pass.capacity),
                                         .entering = {states.data, states.size},
                                         .leaving = states,
                                         .z = kept.z});
    add_output(pass, weights, kept.z, x, x);
  }

 private:
  StackedLinear projections(Capacity capacity) const {
    const Index values = capacity.channels * width_, rows = capacity.channels * modes_;
    return StackedLinear({{value_, values}, {write_, rows}, {read_, rows}, {clock_, rows}});
  }

  // y = x + the mixer, without a tape; a state, when there is one, goes on from where it was.
  void mix(const Pass& pass, const Weights<T>& weights, Matrix<const T> u, Matrix<const T> x, Matrix<T> y,
           Matrix<W> state) const {
    const auto linear = projections(pass.capacity);
    const Index channels = pass.capacity.channels, rows = channels * modes_;
    const auto projection = pass.arena.matrix<T>(pass.tokens(), linear.columns()),
               z = pass.arena.matrix<T>(pass.tokens(), channels * width_);
    linear.forward(pass, weights, u, projection);
    const auto states = pointers(pass, state);
    launch(pass.stream, SelectiveMix<T>{.sequences = pass.sequences,
                                        .length = pass.length,
                                        .width = width_,
                                        .v0 = linear.part(projection, 0),
                                        .write_logits = linear.part(projection, 1),
                                        .read_logits = linear.part(projection, 2),
                                        .clock_logits = linear.part(projection, 3),
                                        .write_bias = weights.vector(write_bias_).first(rows),
                                        .read_bias = weights.vector(read_bias_).first(rows),
                                        .clock_bias = weights.vector(clock_bias_).first(rows),
                                        .blend = weights.vector(blend_).first(channels),
                                        .eps = config_.value_norm_eps,
                                        .modes = tables(weights, pass.capacity),
                                        .entering = {states.data, states.size},
                                        .z = z,
                                        .leaving = states});
    add_output(pass, weights, z, x, y);
  }

  // One pointer per sequence; none for no state.
  static Vector<W*> pointers(const Pass& pass, Matrix<W> state) {
    if (state.empty()) return {};
    const auto rows = pass.arena.vector<W*>(state.rows);
    launch(pass.stream, RowPointers<W>{.matrix = state, .pointers = rows});
    return rows;
  }

  // Everything before the scan: v0 and the gates, and room for z.
  void project(const Pass& pass, const Weights<T>& weights, Matrix<const T> u, SpectralTape<T>& kept) const {
    const auto linear = projections(pass.capacity);
    const Index rows = pass.capacity.channels * modes_, tokens = pass.tokens();
    kept.projection = pass.arena.matrix<T>(tokens, linear.columns());
    kept.z = pass.arena.matrix<T>(tokens, pass.capacity.channels * width_);
    linear.forward(pass, weights, u, kept.projection);
    // Gates take the place of their logits where both are of one type.
    std::size_t part = 1;
    for (auto* gate : {&kept.write, &kept.read, &kept.clock}) {
      if constexpr (std::is_same_v<T, W>)
        *gate = linear.part(kept.projection, part++);
      else
        *gate = pass.arena.matrix<W>(tokens, rows);
    }
    launch(pass.stream, GatesForward<T>{.write_logits = linear.part(kept.projection, 1),
                                        .read_logits = linear.part(kept.projection, 2),
                                        .clock_logits = linear.part(kept.projection, 3),
                                        .write_bias = weights.vector(write_bias_).first(rows),
                                        .read_bias = weights.vector(read_bias_).first(rows),
                                        .clock_bias = weights.vector(clock_bias_).first(rows),
                                        .write = kept.write,
                                        .read = kept.read,
                                        .clock = kept.clock});
  }

  Matrix<T> blended(const Pass& pass, const Weights<T>& weights, const SpectralTape<T>& kept) const {
    const auto v0 = projections(pass.capacity).part(kept.projection, 0);
    const auto v = pass.arena.matrix<T>(v0.rows, v0.cols);
    launch(pass.stream, ValueBlendForward<T>{.v0 = v0,
                                             .blend = weights.vector(blend_).first(pass.capacity.channels),
                                             .v = v,
                                             .width = width_,
                                             .eps = config_.value_norm_eps});
    return v;
  }

  void add_output(const Pass& pass, const Weights<T>& weights, Matrix<const T> z, Matrix<const T> x,
                  Matrix<T> y) const {
    launch(pass.stream, Gemm<T>{.a = z,
                                .b = kept_columns(pass, weights.matrix(out_), z.cols),
                                .c = y,
                                .transpose_b = Transpose::Yes,
                                .alpha = 1 / std::sqrt(static_cast<double>(pass.capacity.channels)),
                                .beta = 1,
                                .addend = x});
  }

  Modes<const W> tables(const Weights<T>& w, Capacity capacity) const {
    return Modes<const W>{w.table(decay_), w.table(frequency_), w.table(readout_cos_), w.table(readout_sin_),
                          w.table(zero_lag_)}
        .first(capacity.channels);
  }
  Modes<W> table_gradients(const Gradients<T>& g, Capacity capacity) const {
    return Modes<W>{g.matrix(decay_), g.matrix(frequency_), g.matrix(readout_cos_), g.matrix(readout_sin_),
                    g.matrix(zero_lag_)}
        .first(capacity.channels);
  }

  ModelConfig config_;
  Index modes_, width_;
  std::size_t value_, write_, read_, clock_, write_bias_, read_bias_, clock_bias_;
  std::size_t decay_, frequency_, readout_cos_, readout_sin_, zero_lag_, blend_, out_;
};

}  // namespace

std::vector<ModelTensor> spectral_mixer_tensors(const ModelConfig& c) {
  const Index d = c.hidden_size, channels = c.spectral_channels, modes = c.spectral_modes, width = c.channel_width;
  const Axis by_value{Elastic::Channels, width}, by_mode{Elastic::Channels, modes}, by_channel{Elastic::Channels, 1};
  std::vector<ModelTensor> list;
  list.push_back({.name = "mixer.value_proj.weight", .rows = channels * width, .cols = d, .row_axis = by_value});
  // The four projections of the input follow each other, so that at full capacity they are one matrix.
  for (const char* gate : {"write", "read", "clock"}) {
    list.push_back({.name = fmt::format("mixer.{}_proj.weight", gate),
                    .rows = channels * modes,
                    .cols = d,
                    .row_axis = by_mode,
                    .initial = Initial::Zero});
  }
  for (const char* gate : {"write", "read", "clock"}) {
    const bool clock = std::string_view(gate) == "clock";
    list.push_back({.name = fmt::format("mixer.{}_proj.bias", gate),
                    .rank = 1,
                    .rows = channels * modes,
                    .row_axis = by_mode,
                    .initial = clock ? Initial::ClockBias : Initial::Zero,
                    .role = Role::Bias});
  }
  const auto table = [&](const char* name, Initial initial, Role role) {
    list.push_back(
        {.name = name, .rows = channels, .cols = modes, .row_axis = by_channel, .initial = initial, .role = role});
  };
  table("mixer.decay", Initial::Decay, Role::Modal);
  table("mixer.frequency", Initial::Frequency, Role::Modal);
  table("mixer.readout_cos", Initial::ReadoutCos, Role::Modal);
  table("mixer.readout_sin", Initial::ReadoutSin, Role::Modal);
  table("mixer.zero_lag", Initial::ZeroLag, Role::ZeroLag);
  list.push_back({.name = "mixer.value_blend",
                  .rank = 1,
                  .rows = channels,
                  .row_axis = by_channel,
                  .initial = Initial::Zero,
                  .role = Role::Blend});
  list.push_back({.name = "mixer.out_proj.weight",
                  .rows = d,
                  .cols = channels * width,
                  .col_axis = by_value,
                  .initial = Initial::NormalOut});
  return list;
}

Index spectral_mixer_state(const ModelConfig& c, Capacity capacity) {
  return 2 * capacity.channels * c.spectral_modes * c.channel_width;
}

Index spectral_mixer_work(const ModelConfig& c, Capacity capacity) {
  const Index projections = 2 * c.hidden_size * c.channel_width + 3 * c.hidden_size * c.spectral_modes;
  // Per mode and value: four for the rotation, one for the write, two for the readout.
  return capacity.channels * (projections + 7 * c.spectral_modes * c.channel_width);
}

template <class T>
std::unique_ptr<Mixer<T>> make_spectral_mixer(const ModelConfig& config, const ParameterLayout& layout, Index layer) {
  return std::make_unique<SpectralMixer<T>>(config, layout, layer);
}

template std::unique_ptr<Mixer<float>> make_spectral_mixer(const ModelConfig&, const ParameterLayout&, Index);
template std::unique_ptr<Mixer<double>> make_spectral_mixer(const ModelConfig&, const ParameterLayout&, Index);
template std::unique_ptr<Mixer<BFloat16>> make_spectral_mixer(const ModelConfig&, const ParameterLayout&, Index);

}  // namespace essh
