#pragma once
#include <array>
#include <limits>
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

// A tile is 16 rows of a weight by a few columns, stored lane by lane. With g = lane / 4 and q = lane % 4 a lane holds
//   Plain, bf16:   16 columns, 16 bytes: columns 4q .. 4q + 3 of rows g and g + 8, as the words (g, 4q), (g + 8, 4q),
//                  (g, 4q + 2), (g + 8, 4q + 2) of the A operand of an m16n8k16 product
//   Plain, float:  8 columns, 16 bytes: columns 4 (lane % 2) .. + 3 of row lane / 2
//   Q8 and FP8:    32 columns, 16 bytes: columns 8q .. 8q + 7 of rows g and g + 8, as the words (g, 8q), (g + 8, 8q),
//                  (g, 8q + 4), (g + 8, 8q + 4) of four codes. The lower half of a word holds columns 0 and 2, the
//                  upper half 1 and 3: in FP8 a byte each; in Q8, from bit 15 down, the sign of the first, the
//                  magnitude of the second, the sign of the second, the magnitude of the first
//   Q4:            32 columns, 8 bytes: the same columns and rows as the words (g, 8q), (g + 8, 8q); columns 2i and
//                  2i + 1 in bits 4i .. 4i + 3 and 16 + 4i .. 19 + 4i, as in a file (code plus 8)
// The codes of a quantised tile are followed by 8 words: the bf16 scales of row g and, in the upper half, of row g + 8.
//
// A weight of the product is the bf16 number nearest to scale * code: the number that a dequantised bf16 copy holds.
enum class TileFormat : std::uint8_t { Plain, Q8, FP8, Q4 };
inline constexpr int kTileRows = 16;
inline constexpr int kTileBytes = 512;  // codes of a Plain, Q8 or FP8 tile
inline constexpr int kTileGroup = 32;   // columns that share a scale
template <class T>
constexpr int tile_columns(TileFormat format) {
  return format == TileFormat::Plain ? kTileBytes / kTileRows / int{sizeof(T)} : kTileGroup;
}
constexpr int tile_bytes(TileFormat format) {
  if (format == TileFormat::Plain) return kTileBytes;
  return (format == TileFormat::Q4 ? kTileBytes / 2 : kTileBytes) + kTileRows * 2;
}

inline constexpr int kStreamedSequences = 8;  // maximum batch of one step

// Phases of a worker in order: waiting for an input, multiplying, mixing.
enum class StepPhase { Begin, Residual, Project, Advance, Attend, Mixed, Output, Middle, GateUp, Hidden, Down, Head };
inline constexpr int kStepPhases = 12;

// A worker's share of a product: the row tiles first, first + stride, ..., each with `steps` tiles along the columns,
// stored from `begin` units of 16 bytes on in the worker's stream. Strides other than 1 are for the gate and up
// product: with `workers` as the stride the first hidden units are those that all workers compute first.
struct alignas(16) StreamShare {
  int first, count, begin, steps, stride = 1;
  int more = 0;  // which pace it has: 1 for a worker with more tiles of the product than others (StreamPace)
};

// Packs rows of weights into tiles. Matrices are stacked by rows; if paired, a tile holds eight rows of the first and
// the same eight of the second. Padding is zero.
template <class T>
struct PackTiles {
  std::vector<Matrix<const T>> parts;  // at most 4, of equal columns
  bool paired = false;
  Index steps;             // tiles along the columns
  Vector<const Index> to;  // for each tile of rows, the byte of the stream where its first tile begins
  std::byte* stream;       // (=)
};

// A quantised matrix as a file stores it: rows of codes and of bf16 scales.
struct CodedMatrix {
  const std::byte* codes;
  const BFloat16* scales;
  Index rows, cols;
  Index code_stride;   // bytes from row to row
  Index scale_stride;  // elements from row to row
};
// The same for quantised weights. Codes are finite, and -127 to 127 in Q8.
struct PackCodedTiles {
  TileFormat format;
  std::vector<CodedMatrix> parts;
  bool paired = false;
  Index steps;
  Vector<const Index> to;
  std::byte* stream;
};

// Bytes of a residual in the exchange: as float, and once more as T if that is narrower.
template <class T>
constexpr Index residual_bytes(Index hidden) {
  return (hidden + kTileRows - 1) / kTileRows * kTileRows * Index{sizeof(T) < 4 ? 4 + sizeof(T) : 4};
}

// One layer of the step. Offsets into the exchange are in bytes for one sequence; each region of the exchange holds its
// sequences one after the other. Pointers and tables are in device memory.
struct alignas(16) StreamedLayer {
  bool attends;
  const float* mixer_gain;
  const float* ffn_gain;
  // Spectral: channels x modes x 8 constants (rho cos, rho sin, readout cos, readout sin, zero lag times readout cos,
  // bias of write, read, clock), and the blend of each channel.
  const float* modal;
  const float* blend;
  Index state;  // bytes before this layer's state
  // Attention. Position p lies in row p % ring, or in row p if ring is 0. All rings of a model have one size. A head's
  // positions are cut into at most `most_shares` shares of equal size, each attended to by one block.
  int heads, kv_heads, head_dim, window, ring, most_shares;
  const double* frequencies;     // head_dim / 2
  Index keys, keys_per_row;      // bytes before the keys: keys + keys_per_row * capacity
  Index values, values_per_row;  // likewise for the values
  // Regions of the exchange: projections (float), the mixer's readout (T; for attention, float per share), the residual
  // after the mixer (residual_bytes), the hidden units (T), the residual after the layer (residual_bytes).
  int projected, mixed, middle, hidden, leaving;
};

// One sequence of the step.
struct StreamedSequence {
  const std::byte* entering;  // states of fixed size
  std::byte* leaving;         // (=) may be `entering`
  std::byte* rows;            // caches
  Index capacity;             // rows of caches without a ring
  Index position;             // tokens before this one
  int newest;                 // row of this token in caches with a ring: position % ring
  std::int32_t token;
  const LogitKey* drawn;  // if set, the token is this key's
};

// Slots (16 to 18 KB) that a worker keeps in flight. More than the memory's latency needs only fill its queues and
// delay the exchange. A worker is hungry while no more than `until` slots are filled or in flight: others wait for its
// results, and with more slots in flight it gets more of the memory's rate than those that read ahead.
struct SlotsInFlight {
  std::uint8_t fed = 2, hungry = 4, until = 4;
};

// The same by product whose weights are read (projections, output, gate and up, down, head) and by StreamShare::more.
inline constexpr int kStepProducts = 5;
using StreamPace = std::array<std::array<SlotsInFlight, 2>, kStepProducts>;

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
  const Index* stream_begin;  // bytes before each worker's stream
  const std::byte* streams;
  TileFormat layer_format = TileFormat::Plain, head_format = TileFormat::Plain;  // see streamed_formats()
  const T* embedding;                                                            // vocabulary x hidden
  const float* last_gain;
  int widest;   // largest input of a product, in elements
  int besides;  // largest input except the hidden units
  StreamPace pace;

  int count;  // sequences
  std::array<StreamedSequence, kStreamedSequences> sequence;
  std::byte* exchange;        // all kUnsent
  std::byte* exchange_again;  // (=) reset to kUnsent for the next step
  Index exchange_again_bytes;
  // Every lane gives back a slot of the ring that it has read. Otherwise lane 0 does for its warp, which racecheck does
  // not follow.
  bool lanes_give_back = false;
  long long* cycles = nullptr;  // (+=) workers x kStepPhases, for profiling; may be null
  float* logits;                // (=) sequences x vocabulary
  LogitKey* keys;               // (=) largest logit of each sequence; zero on entry
};

template <class T>
void run(cuda::Stream&, const PackTiles<T>&);
void run(cuda::Stream&, const PackCodedTiles&);
template <class T>
void run(cuda::Stream&, const StreamedStep<T>&);

// Whether there is a step of these formats: Plain; for bf16 also Q8, FP8, and Q4 with a head in Q8.
template <class T>
constexpr bool streamed_formats(TileFormat layers, TileFormat head) {
  if (layers == TileFormat::Plain || sizeof(T) == 4) return layers == TileFormat::Plain && head == TileFormat::Plain;
  return head == (layers == TileFormat::Q4 ? TileFormat::Q8 : layers);
}

// What a device offers a model of `layers` whose products have up to `widest` inputs; sequences = 0 if the step cannot
// run. Needs sm_90.
struct StreamedLimits {
  int workers = 0, sequences = 0;
  // Up to how many pairs of a spectral channel and a sequence a step is faster than kernel by kernel.
  Index faster_pairs = std::numeric_limits<Index>::max();
};
template <class T>
StreamedLimits streamed_limits(cuda::Stream&, Index widest, Index layers, TileFormat format);

}  // namespace essh
