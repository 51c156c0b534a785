#pragma once
#include <array>
#include <vector>

#include "essh/kernels/largest_logit.h"

namespace essh {

// One token of each of a few sequences through a whole model, as one kernel. A worker is a multiprocessor. The weights
// of all products are stored as one stream of tiles per worker, in the order of use, so that a worker reads them ahead
// without waiting for data dependencies. Workers pass activations through the exchange: memory in which every element
// holds kUnsent until its only writer has stored it, so the data is its own flag.
//
// A row of a product is summed in an order that depends only on its inner size, and sequences are never combined: a
// sequence's bits do not depend on the others in the step.

// A tile is 16 rows by 32 bytes of a weight, stored lane by lane, 16 bytes each:
//   bf16:  lane l holds columns 4q .. 4q + 3 (q = l % 4) of rows l / 4 and l / 4 + 8, as the words
//          (row, 4q), (row + 8, 4q), (row, 4q + 2), (row + 8, 4q + 2) of the A operand of an m16n8k16 product
//   float: lane l holds columns 4 (l % 2) .. + 3 of row l / 2
inline constexpr int kTileRows = 16;
inline constexpr int kTileBytes = 512;
template <class T>
inline constexpr int kTileColumns = kTileBytes / kTileRows / int{sizeof(T)};

inline constexpr int kStreamedSequences = 8;  // maximum batch of one step

// Phases of a worker in order: waiting for an input, multiplying, mixing.
enum class StepPhase { Begin, Residual, Project, Advance, Attend, Mixed, Output, Middle, GateUp, Hidden, Down, Head };
inline constexpr int kStepPhases = 12;

// A worker's share of a product: row tiles [first, first + count), each with `steps` tiles along the columns, stored
// `begin` tiles into the worker's stream.
struct StreamShare {
  int first, count, begin, steps;
};

// Packs rows of weights into tiles. Matrices are stacked by rows; if paired, a tile holds eight rows of the first and
// the same eight of the second. Padding is zero.
template <class T>
struct PackTiles {
  std::vector<Matrix<const T>> parts;  // at most 4, of equal columns
  bool paired = false;
  Index steps;             // tiles along the columns
  Vector<const Index> to;  // for each tile of rows, the index of its first tile in the stream
  T* stream;               // (=)
};

// One layer of the step. Offsets into the exchange are in bytes for one sequence; each region of the exchange holds its
// sequences one after the other. Pointers and tables are in device memory.
struct StreamedLayer {
  bool attends;
  const float* mixer_gain;
  const float* ffn_gain;
  // Spectral: channels x modes x 8 constants (rho cos, rho sin, readout cos, readout sin, zero lag times readout cos,
  // bias of write, read, clock), and the blend of each channel.
  const float* modal;
  const float* blend;
  Index state;  // bytes before this layer's state
  // Attention. Position p lies in row p % ring, or in row p if ring is 0. A share is `share` positions, attended to by
  // one block.
  int heads, kv_heads, head_dim, window, ring, share, most_shares;
  const double* frequencies;     // head_dim / 2
  Index keys, keys_per_row;      // bytes before the keys: keys + keys_per_row * capacity
  Index values, values_per_row;  // likewise for the values
  // Regions of the exchange: projections (float), the mixer's readout (T; for attention, float per share), the residual
  // after the mixer (float), the hidden units (T), the residual after the layer (float).
  int projected, mixed, middle, hidden, leaving;
};

// One sequence of the step.
struct StreamedSequence {
  const std::byte* entering;  // states of fixed size
  std::byte* leaving;         // (=) may be `entering`
  std::byte* rows;            // caches
  Index capacity;             // rows of caches without a ring
  Index position;             // tokens before this one
  std::int32_t token;
  const LogitKey* drawn;  // if set, the token is this key's
};

template <class T>
struct StreamedStep {
  // Sizes of the model.
  int layers, hidden, channels, modes, width, units, vocabulary;
  float rms_eps, value_eps, out_scale;
  int mixer_rows;  // rows of the spectral projections in the exchange
  const StreamedLayer* layer;
  // Products in order: four per layer, then the head.
  int workers;
  const StreamShare* shares;  // products x workers
  const Index* stream_begin;  // tiles before each worker's stream
  const std::byte* streams;
  const T* embedding;  // vocabulary x hidden
  const float* last_gain;
  int widest;  // largest input of a product, in elements
  // Slots of 16 KB that a worker keeps in flight. More than the memory's latency needs only fill its queues and delay
  // the exchange.
  int in_flight;

  int count;  // sequences
  std::array<StreamedSequence, kStreamedSequences> sequence;
  std::byte* exchange;        // all kUnsent
  std::byte* exchange_again;  // (=) reset to kUnsent for the next step
  Index exchange_again_bytes;
  long long* cycles = nullptr;  // (+=) workers x kStepPhases, for profiling; may be null
  float* logits;                // (=) sequences x vocabulary
  LogitKey* keys;               // (=) largest logit of each sequence; zero on entry
};

template <class T>
void run(cuda::Stream&, const PackTiles<T>&);
template <class T>
void run(cuda::Stream&, const StreamedStep<T>&);

// What a device offers a model of `layers` whose products have up to `widest` inputs; sequences = 0 if the step cannot
// run. Needs sm_90.
struct StreamedLimits {
  int workers = 0, sequences = 0;
};
template <class T>
StreamedLimits streamed_limits(cuda::Stream&, Index widest, Index layers);

}  // namespace essh
