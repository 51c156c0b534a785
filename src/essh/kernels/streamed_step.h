#pragma once
#include <array>
#include <vector>

#include "essh/kernels/largest_logit.h"

namespace essh {

// One token of each of a few sequences through a whole model, as one kernel. The weights of all products lie as one
// stream of tiles per worker (a multiprocessor), in the order in which the worker uses them, so that they are read
// without looking at what depends on what. Workers hand activations to each other through the exchange: memory in which
// every element holds kUnsent until its one writer has stored it, so the data is its own flag.
//
// A row of a product is summed in an order that follows from its inner size alone, and a sequence never meets another:
// its bits do not depend on the sequences beside it.

// A tile is 16 rows by 32 bytes of a weight, stored lane by lane, 16 bytes each:
//   bf16:  lane l holds columns 4q .. 4q + 3 (q = l % 4) of rows l / 4 and l / 4 + 8, as the words
//          (row, 4q), (row + 8, 4q), (row, 4q + 2), (row + 8, 4q + 2) of the A operand of an m16n8k16 product
//   float: lane l holds columns 4 (l % 2) .. + 3 of row l / 2
inline constexpr int kTileRows = 16;
inline constexpr int kTileBytes = 512;
template <class T>
inline constexpr int kTileColumns = kTileBytes / kTileRows / int{sizeof(T)};

inline constexpr int kStreamedSequences = 8;  // most sequences of one step

// What a worker does one after the other: waits for an input, multiplies, mixes.
enum class StepPhase { Begin, Residual, Project, Advance, Attend, Mixed, Output, Middle, GateUp, Hidden, Down, Head };
inline constexpr int kStepPhases = 12;

// Tiles [first, first + count) of the rows of a product, with `steps` tiles along the columns, belong to a worker; its
// stream has them after `begin` tiles.
struct StreamShare {
  int first, count, begin, steps;
};

// Lays rows of weights out as tiles. Rows of several matrices follow each other; paired, a tile has eight rows of the
// first and the same eight of the second. Beyond the last row and column it is zero.
template <class T>
struct PackTiles {
  std::vector<Matrix<const T>> parts;  // at most 4, of equal columns
  bool paired = false;
  Index steps;             // tiles along the columns
  Vector<const Index> to;  // for each tile of rows, the place of its first tile, in tiles
  T* stream;               // (=)
};

// How a layer of the step works. Offsets into the exchange are bytes of one sequence; those of a batch follow each
// other part by part. Pointers and tables lie where the kernel runs.
struct StreamedLayer {
  bool attends;
  const float* mixer_gain;
  const float* ffn_gain;
  // Spectral: channels x modes x 8 constants (rho cos, rho sin, readout cos, readout sin, zero lag times readout cos,
  // bias of write, read, clock), and the blend of each channel.
  const float* modal;
  const float* blend;
  Index state;  // bytes before this layer's state
  // Attention. Position p lies in row p % ring, or in row p when ring is 0; `share` positions are attended at once.
  int heads, kv_heads, head_dim, window, ring, share, most_shares;
  const double* frequencies;     // head_dim / 2
  Index keys, keys_per_row;      // bytes before the keys: keys + keys_per_row * capacity
  Index values, values_per_row;  // the same of the values
  // The exchange: projections (float), what the mixer read out (T, or float of each share), the residual after the
  // mixer (float), the hidden units (T), the residual after the layer (float).
  int projected, mixed, middle, hidden, leaving;
};

// Where a sequence stands.
struct StreamedSequence {
  const std::byte* entering;  // fixed parts of the state
  std::byte* leaving;         // (=) may be `entering`
  std::byte* rows;            // caches
  Index capacity;             // rows of caches that grow
  Index position;             // tokens before this one
  std::int32_t token;
  const LogitKey* drawn;  // when given, the token is the one of this key
};

template <class T>
struct StreamedStep {
  // Sizes of the model.
  int layers, hidden, channels, modes, width, units, vocabulary;
  float rms_eps, value_eps, out_scale;
  int mixer_rows;  // of the spectral projections, as exchanged
  const StreamedLayer* layer;
  // The products in their order: four for each layer, and the head.
  int workers;
  const StreamShare* shares;  // products x workers
  const Index* stream_begin;  // tiles before each worker's stream
  const std::byte* streams;
  const T* embedding;  // vocabulary x hidden
  const float* last_gain;
  int widest;  // most elements of an input of a product
  // Slots of 16 KB that a worker has on their way at once. More than the memory's latency asks for fill its queues, and
  // what workers send each other waits in them.
  int in_flight;

  int count;  // sequences
  std::array<StreamedSequence, kStreamedSequences> sequence;
  std::byte* exchange;        // unsent
  std::byte* exchange_again;  // (=) made unsent for another step
  Index exchange_again_bytes;
  long long* cycles = nullptr;  // (+=) workers x kStepPhases, for a profile
  float* logits;                // (=) sequences x vocabulary
  LogitKey* keys;               // (=) of the largest logit of each sequence; zero before
};

template <class T>
void run(cuda::Stream&, const PackTiles<T>&);
template <class T>
void run(cuda::Stream&, const StreamedStep<T>&);

// What a device offers to a model of `layers` whose products have up to `widest` inputs: no sequences where the step
// does not run. Needs sm_90.
struct StreamedLimits {
  int workers = 0, sequences = 0;
};
template <class T>
StreamedLimits streamed_limits(cuda::Stream&, Index widest, Index layers);

}  // namespace essh
