#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "essh/device/stream.h"
#include "essh/model/residual.h"
#include "essh/model/tensors.h"

namespace essh {

// One pass over `sequences` sequences of `length` tokens at one capacity; rows are sequence-major.
struct Pass {
  Stream& stream;
  Arena& arena;
  Capacity capacity;
  Index sequences = 1;
  Index length = 1;
  // Factors on the gradients of every parameter of feed-forwards and of spectral mixers, tables, biases and blends
  // included (the paper's alpha_ff and alpha_mix). Attention is not scaled.
  double ffn_gradient_scale = 1;
  double mixer_gradient_scale = 1;
  // If given, layers x units: feed-forwards add their squared hidden activations, summed over tokens.
  Matrix<double> ffn_squares = {};
  // If given, backward calls it with every layer whose weight gradients are complete, from the last layer to the first.
  const std::function<void(Index)>* layer_done = nullptr;
  RowBits bits = RowBits::Free;

  Index tokens() const { return sequences * length; }
};

// One component of the state of a sequence. Fixed: `columns` elements that every token updates. Rows: one row of
// `columns` elements per token; the last `window` rows are read (0: all).
struct StatePart {
  enum class Kind { Fixed, Rows } kind;
  Format format;
  Index columns;
  Index window = 0;
};

// How the state of a sequence is stored.
struct StateFormats {
  Format rows;                 // keys and values
  bool coded_windows = false;  // rows of sliding attention are those of kernels/coded_rows.h, `columns` of their size
  bool narrow_states = false;  // recurrent states are in bf16, not float32
};

// Rows of a ring buffer beyond its window, so that recent tokens can be rolled back: position p is in row p % (window +
// kSpareRows).
inline constexpr Index kSpareRows = 16;

// SequenceBatch of equal length in a recurrent pass: rows first_row to first_row + sequences * length of the pass.
struct Segment {
  Index first_row, first_sequence, sequences, length;
};

// A host array and its device copy; on the CPU both are the same memory.
template <class T>
struct Mirrored {
  const T* host = nullptr;
  const T* device = nullptr;
};

// The sequences of a recurrent pass: positions, and pointers to their states.
struct SequenceBatch {
  std::span<const Segment> segments;
  Index count = 0;
  Mirrored<Index> positions;  // tokens before this pass
  // Indexed by state component and sequence. Fixed components are read from `entering` and written to `leaving` (may be
  // equal); row components have the same memory in both.
  Mirrored<std::byte*> entering, leaving;
  Index longest = 0;  // bound on the positions after this pass, and after any replay of it
  bool coded_windows = false, narrow_states = false;  // as in StateFormats
  // Channels and units of each sequence, where they have single tokens and capacities of their own below the pass's;
  // else null.
  Mirrored<std::int32_t> channels = {}, units = {};

  template <class W>
  Vector<W* const> states(const Mirrored<std::byte*>& table, std::size_t part, const Segment& segment) const {
    const auto first = static_cast<Index>(part) * count + segment.first_sequence;
    return {reinterpret_cast<W* const*>(table.device + first), segment.sequences};
  }
  std::byte* rows_of(std::size_t part, Index sequence) const {
    return entering.host[static_cast<Index>(part) * count + sequence];
  }
  Vector<const std::int32_t> channels_of(const Segment& segment) const {
    if (!channels.device) return {};
    return {channels.device + segment.first_sequence, segment.sequences};
  }
  Vector<const std::int32_t> all_units() const {
    if (!units.device) return {};
    return {units.device, count};
  }
  Vector<const Index> positions_of(const Segment& segment) const {
    return {positions.device + segment.first_sequence, segment.sequences};
  }
};

// Data that a mixer's forward pass keeps for backward, in the pass's arena.
struct MixerTape {
  virtual ~MixerTape() = default;
};

// The token mixer of a block. A kind of mixer is one pair of files with its tensors, state, forward, backward and
// recurrent extension; only mixer.cpp knows the kinds. Mixers hold shapes, never weights.
template <class T>
class Mixer {
 public:
  virtual ~Mixer() = default;

  // y = x + mix(u); y may be x. Fills the tape, if there is one, with arena memory for backward.
  virtual void forward(const Pass& pass, const Weights& weights, Matrix<const T> u, const Residual<T>& x,
                       const Residual<T>& y, std::unique_ptr<MixerTape>* tape) const = 0;
  // d_u = gradient of u given d_y, rounded to T; gradients of the weights are added.
  virtual void backward(const Pass& pass, const Weights& weights, const Gradients<T>& gradients, Matrix<const T> u,
                        Matrix<const T> d_y, const MixerTape& tape, Matrix<T> d_u) const = 0;
  // u.x += mix(u) for the tokens of a recurrent pass at full capacity, to be normalised with next_gain afterwards;
  // `first_part` is the index of the layer's first state component. Updates the states.
  virtual void extend(const Pass& pass, const Weights& weights, NormedResidual<T>& u, Vector<const Wide<T>> next_gain,
                      const SequenceBatch& sequences, std::size_t first_part) const = 0;
};

// The tensors of a layer's mixer; names without the layer's prefix.
std::vector<ModelTensor> mixer_tensors(const ModelConfig& config, Index layer);
std::vector<StatePart> mixer_state(const ModelConfig& config, Index layer, const StateFormats& formats);
// Multiply-adds per token in decoding after `context` tokens.
Index mixer_work(const ModelConfig& config, Index layer, Index context);
template <class T>
std::unique_ptr<Mixer<T>> make_mixer(const ModelConfig& config, const ParameterLayout& layout, Index layer);

// The state of a sequence of a whole model, layer by layer.
std::vector<StatePart> model_state(const ModelConfig& config, const StateFormats& formats);

}  // namespace essh
