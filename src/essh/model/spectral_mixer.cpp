#include "essh/model/spectral_mixer.h"

#include <cmath>
#include <type_traits>

#include "essh/kernels/gates.h"
#include "essh/kernels/gemm.h"
#include "essh/kernels/selective_mix.h"
#include "essh/kernels/selective_scan.h"
#include "essh/kernels/value_blend.h"
#include "essh/model/stacked_linear.h"

namespace essh {
namespace {

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

  void forward(const Pass& pass, const Weights& weights, Matrix<const T> u, const Residual<T>& x, const Residual<T>& y,
               std::unique_ptr<MixerTape>* tape) const override {
    const auto linear = projections(pass.capacity);
    const auto projection = pass.arena.matrix<T>(pass.tokens(), linear.columns()),
               z = pass.arena.matrix<T>(pass.tokens(), pass.capacity.channels * width_);
    linear.forward(pass, weights, u, projection);
    if (!tape) {
      mix(pass, weights, pass.sequences, pass.length, projection, {}, z, {});
      return add_output(pass, weights, z, x, y);
    }
    const Index state = 2 * pass.capacity.channels * modes_ * width_;
    auto kept = std::make_unique<SpectralTape<T>>();
    kept->projection = projection;
    kept->z = z;
    gate(pass, weights, *kept);
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

  void backward(const Pass& pass, const Weights& weights, const Gradients<T>& all_gradients, Matrix<const T> u,
                Matrix<const T> d_y, const MixerTape& tape, Matrix<T> d_u) const override {
    const auto& kept = static_cast<const SpectralTape<T>&>(tape);
    const auto linear = projections(pass.capacity);
    const Index channels = pass.capacity.channels, values = channels * width_, rows = channels * modes_,
                tokens = pass.tokens();
    const double out_scale = output_scale(pass.capacity);
    const auto mark = pass.arena.mark();
    // Every gradient is linear in d_z: scaling d_z scales all parameters' gradients, and d_u is divided again at the
    // end. With a scale of zero the parameters' gradients go to scratch.
    const bool frozen = pass.mixer_gradient_scale == 0;
    const double scale = frozen ? 1 : pass.mixer_gradient_scale;
    auto gradients = all_gradients;
    if (frozen) gradients.data = pass.arena.vector<W>(gradients.layout->size()).data;

    const auto d_z = pass.arena.matrix<T>(tokens, values);
    launch(pass.stream,
           Gemm<T>{.a = d_y, .b = weights[out_].left(values).as<T>(), .c = d_z, .alpha = out_scale * scale});
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
                                              .blend = weights.vector<W>(blend_).first(channels),
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
    linear.backward(pass, weights, gradients, u, d_projection, {.input = 1 / scale}, d_u);
    pass.arena.release(mark);
  }

  void extend(const Pass& pass, const Weights& weights, NormedResidual<T>& u, Vector<const W> next_gain,
              const SequenceBatch& sequences, std::size_t first_part) const override {
    const auto linear = projections(pass.capacity);
    const auto projection = pass.arena.matrix<T>(u.rows(), linear.columns()),
               z = pass.arena.matrix<T>(u.rows(), pass.capacity.channels * width_);
    linear.forward(pass, weights, u, projection);
    for (const auto& segment : sequences.segments) {
      const auto rows = [&](Matrix<T> m) { return m.middle(segment.first_row, segment.sequences * segment.length); };
      mix(pass, weights, segment.sequences, segment.length, rows(projection),
          sequences.states<const W>(sequences.entering, first_part, segment), rows(z),
          sequences.states<W>(sequences.leaving, first_part, segment), sequences.channels_of(segment),
          sequences.narrow_states, sequences.segments.size() == 1);  // a segment may continue where another ends
    }
    u.add_product(pass.stream, z, weights[out_].left(z.cols), output_scale(pass.capacity), pass.bits, next_gain);
  }

 private:
  StackedLinear projections(Capacity capacity) const {
    const Index values = capacity.channels * width_, rows = capacity.channels * modes_;
    return StackedLinear({{value_, values}, {write_, rows}, {read_, rows}, {clock_, rows}});
  }

  // z = scan (or single step) of the projections, without a tape. Continues from the states, if given.
  void mix(const Pass& pass, const Weights& weights, Index sequences, Index length, Matrix<T> projection,
           Vector<const W* const> entering, Matrix<T> z, Vector<W* const> leaving, Vector<const std::int32_t> kept = {},
           bool narrow_states = false, bool settled = false) const {
    const auto linear = projections(pass.capacity);
    const Index channels = pass.capacity.channels, rows = channels * modes_;
    launch(pass.stream, SelectiveMix<T>{.sequences = sequences,
                                        .length = length,
                                        .width = width_,
                                        .v0 = linear.part(projection, 0),
                                        .write_logits = linear.part(projection, 1),
                                        .read_logits = linear.part(projection, 2),
                                        .clock_logits = linear.part(projection, 3),
                                        .write_bias = weights.vector<W>(write_bias_).first(rows),
                                        .read_bias = weights.vector<W>(read_bias_).first(rows),
                                        .clock_bias = weights.vector<W>(clock_bias_).first(rows),
                                        .blend = weights.vector<W>(blend_).first(channels),
                                        .eps = config_.value_norm_eps,
                                        .modes = tables(weights, pass.capacity),
                                        .entering = entering,
                                        .z = z,
                                        .leaving = leaving,
                                        .kept = kept,
                                        .narrow_states = narrow_states,
                                        .settled = settled});
  }

  // Computes the gates from the logits in kept.projection.
  void gate(const Pass& pass, const Weights& weights, SpectralTape<T>& kept) const {
    const auto linear = projections(pass.capacity);
    const Index rows = pass.capacity.channels * modes_;
    // Gates overwrite their logits if both have the same type.
    std::size_t part = 1;
    for (auto* gate : {&kept.write, &kept.read, &kept.clock}) {
      if constexpr (std::is_same_v<T, W>)
        *gate = linear.part(kept.projection, part++);
      else
        *gate = pass.arena.matrix<W>(kept.projection.rows, rows);
    }
    launch(pass.stream, GatesForward<T>{.write_logits = linear.part(kept.projection, 1),
                                        .read_logits = linear.part(kept.projection, 2),
                                        .clock_logits = linear.part(kept.projection, 3),
                                        .write_bias = weights.vector<W>(write_bias_).first(rows),
                                        .read_bias = weights.vector<W>(read_bias_).first(rows),
                                        .clock_bias = weights.vector<W>(clock_bias_).first(rows),
                                        .write = kept.write,
                                        .read = kept.read,
                                        .clock = kept.clock});
  }

  Matrix<T> blended(const Pass& pass, const Weights& weights, const SpectralTape<T>& kept) const {
    const auto v0 = projections(pass.capacity).part(kept.projection, 0);
    const auto v = pass.arena.matrix<T>(v0.rows, v0.cols);
    launch(pass.stream, ValueBlendForward<T>{.v0 = v0,
                                             .blend = weights.vector<W>(blend_).first(pass.capacity.channels),
                                             .v = v,
                                             .width = width_,
                                             .eps = config_.value_norm_eps});
    return v;
  }

  void add_output(const Pass& pass, const Weights& weights, Matrix<const T> z, const Residual<T>& x,
                  const Residual<T>& y) const {
    add_product<T>(pass.stream, z, weights[out_].left(z.cols), output_scale(pass.capacity), pass.bits, x, y);
  }
  static double output_scale(Capacity capacity) { return 1 / std::sqrt(static_cast<double>(capacity.channels)); }

  Modes<const W> tables(const Weights& w, Capacity capacity) const {
    return Modes<const W>{w.table<W>(decay_), w.table<W>(frequency_), w.table<W>(readout_cos_),
                          w.table<W>(readout_sin_), w.table<W>(zero_lag_)}
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
  const Cut by_value{Axis::Channels, width}, by_mode{Axis::Channels, modes}, by_channel{Axis::Channels, 1};
  std::vector<ModelTensor> list;
  list.push_back({.name = "mixer.value_proj.weight", .rows = channels * width, .cols = d, .row_cut = by_value});
  for (const char* gate : {"write", "read", "clock"}) {
    list.push_back({.name = fmt::format("mixer.{}_proj.weight", gate),
                    .rows = channels * modes,
                    .cols = d,
                    .row_cut = by_mode,
                    .initial = Initial::fill(0),
                    .stacked = true});
  }
  for (const char* gate : {"write", "read", "clock"}) {
    const bool clock = std::string_view(gate) == "clock";
    list.push_back({.name = fmt::format("mixer.{}_proj.bias", gate),
                    .rank = 1,
                    .rows = channels * modes,
                    .row_cut = by_mode,
                    .initial = Initial::fill(clock ? -3 : 0),
                    .role = Role::Bias,
                    .decays = false});
  }
  const auto table = [&](const char* name, Initial initial, Role role) {
    list.push_back({.name = name,
                    .rows = channels,
                    .cols = modes,
                    .row_cut = by_channel,
                    .initial = initial,
                    .role = role,
                    .decays = role == Role::ZeroLag});
  };
  table("mixer.decay", Initial::from(&ModalTable::decay), Role::Modal);
  table("mixer.frequency", Initial::from(&ModalTable::frequency), Role::Modal);
  table("mixer.readout_cos", Initial::from(&ModalTable::readout_cos), Role::Modal);
  table("mixer.readout_sin", Initial::from(&ModalTable::readout_sin), Role::Modal);
  table("mixer.zero_lag", Initial::fill(0.5), Role::ZeroLag);
  list.push_back({.name = "mixer.value_blend",
                  .rank = 1,
                  .rows = channels,
                  .row_cut = by_channel,
                  .initial = Initial::fill(0),
                  .role = Role::Blend,
                  .decays = false});
  list.push_back({.name = "mixer.out_proj.weight",
                  .rows = d,
                  .cols = channels * width,
                  .col_cut = by_value,
                  .initial = initial_out(c)});
  return list;
}

std::vector<StatePart> spectral_mixer_state(const ModelConfig& c, const StateFormats& formats) {
  return {{.kind = StatePart::Kind::Fixed,
           .format = formats.narrow_states ? Format::BF16 : Format::F32,
           .columns = 2 * c.spectral_channels * c.spectral_modes * c.channel_width}};
}

Index spectral_mixer_work(const ModelConfig& c) {
  const Index projections = 2 * c.hidden_size * c.channel_width + 3 * c.hidden_size * c.spectral_modes;
  // Per mode and value: four for the rotation, one for the write, two for the readout.
  return c.spectral_channels * (projections + 7 * c.spectral_modes * c.channel_width);
}

template <class T>
std::unique_ptr<Mixer<T>> make_spectral_mixer(const ModelConfig& config, const ParameterLayout& layout, Index layer) {
  return std::make_unique<SpectralMixer<T>>(config, layout, layer);
}

template std::unique_ptr<Mixer<float>> make_spectral_mixer(const ModelConfig&, const ParameterLayout&, Index);
template std::unique_ptr<Mixer<double>> make_spectral_mixer(const ModelConfig&, const ParameterLayout&, Index);
template std::unique_ptr<Mixer<BFloat16>> make_spectral_mixer(const ModelConfig&, const ParameterLayout&, Index);

}  // namespace essh
