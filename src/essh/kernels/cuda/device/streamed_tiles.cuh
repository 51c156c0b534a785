#pragma once
#include "essh/kernels/cuda/device/attention_rows.cuh"
#include "essh/kernels/cuda/device/coded_tile.cuh"
#include "essh/kernels/cuda/device/exchange.cuh"
#include "essh/kernels/cuda/device/tile_ring.cuh"
#include "essh/kernels/streamed_step.h"

// Shared memory of the streamed step and the products of its tiles.
namespace essh::cuda::device {

inline constexpr int kWarps = 16;               // warps that compute
inline constexpr int kReaders = kWarps * 32;    // their threads
inline constexpr int kThreads = kReaders + 64;  // one more warp copies weights, one clears the other exchange
inline constexpr int kTakers = 64;              // for a single sequence, threads that take hidden units besides
inline constexpr int kMostChunks = 128;         // of hidden units; one run of 16 bytes per taker
template <class T>
inline constexpr int kChunk = kTakers * 16 / int{sizeof(T)};
inline constexpr int kSums = 128;             // values reduced over the warps at once, four threads each
inline constexpr int kSumStride = kSums + 8;  // the four threads read different banks
inline constexpr int kGroupColumns = 8;       // values of a channel advanced by one warp
inline constexpr int kLeastShare = 64;        // positions of a head attended to by one block
inline constexpr int kMostPrefetched = 768;   // positions; more would not stay in the L2 cache
inline constexpr int kPartStride = kRowMaxColumns + 2;

// Tiles of a slot of the ring, along the columns.
__host__ __device__ constexpr int slot_tiles(TileFormat format) {
  return (format == TileFormat::Q4 ? 4 : 2) * kWarps;
}
__host__ __device__ constexpr int slot_bytes(TileFormat format) {
  return slot_tiles(format) * tile_bytes(format);
}

// What the formats of a step's weights decide: kColumns, the columns of its widest tiles, and the size of a slot.
template <class T, TileFormat kLayers, TileFormat kHead>
struct StepTiles {
  static constexpr int kColumns = tile_columns<T>(kLayers) > tile_columns<T>(kHead) ? tile_columns<T>(kLayers)
                                                                                    : tile_columns<T>(kHead);
  static constexpr int kSlotBytes = slot_bytes(kLayers) > slot_bytes(kHead) ? slot_bytes(kLayers) : slot_bytes(kHead);
};

template <int kColumns>
__host__ __device__ constexpr int padded_inner(int columns) {
  return (columns + kColumns - 1) / kColumns * kColumns;
}
// Elements between the inputs of two sequences. Padding avoids bank conflicts: 16 bytes; for quantised tiles, whose
// lanes read 16 bytes each, half of the banks.
template <class T, int kColumns>
__host__ __device__ constexpr int input_stride(int widest) {
  if (kColumns == kTileGroup) return padded_inner<2 * kTileGroup>(widest) + kTileGroup;
  return padded_inner<kColumns>(widest) + 16 / int{sizeof(T)};
}

// Shared memory except the ring. Every part of it begins at a multiple of 16 bytes.
static_assert(sizeof(StreamedLayer) % 16 == 0 && sizeof(StreamShare) % 16 == 0);
template <class T, int kColumns>
struct Shared {
  float* sums;     // 2 x kWarps x kSumStride
  float* squares;  // 2 x sequences x kWarps
  float2* turns;   // 2 x sequences x head_dim / 2, shared by all layers of a kind
  float* query;    // head_dim
  T* fresh;        // 2 x head_dim: the new key and value
  std::uint64_t* barriers;
  StreamedLayer* layers;
  StreamShare* shares;  // this worker's
  T* input;
  // For a single sequence: the hidden units, and barriers of the chunks in which they come; the last one tells that
  // they are about to come.
  T* hidden;
  std::uint64_t* chunks;

  __host__ __device__ static constexpr int products(int layers) { return 4 * layers + 1; }
  // A step of a single sequence has room for the hidden units besides another input.
  __host__ __device__ static constexpr int bytes(int widest, int besides, int count, int layers) {
    const bool single = count == 1;
    const int inputs = single ? input_stride<T, kColumns>(besides) + input_stride<T, kColumns>(widest)
                              : count * input_stride<T, kColumns>(widest);
    return 2 * kWarps * kSumStride * 4 + 2 * kStreamedSequences * kWarps * 4 + turn_bytes(single) + kRowMaxColumns * 4 +
           2 * kRowMaxColumns * 4 + 2 * 16 * 8 + layers * int{sizeof(StreamedLayer)} +
           products(layers) * int{sizeof(StreamShare)} + inputs * int{sizeof(T)} + (single ? (kMostChunks + 1) * 8 : 0);
  }
  __host__ __device__ static constexpr int turn_bytes(bool single) {
    return 2 * (single ? 1 : kStreamedSequences) * kRowMaxColumns / 2 * 8;
  }
  __device__ Shared(unsigned char* at, int layer_count, int widest, int besides, bool single) {
    const auto take = [&](int size) {
      auto* place = at;
      at += size;
      return place;
    };
    barriers = reinterpret_cast<std::uint64_t*>(take(2 * 16 * 8));
    sums = reinterpret_cast<float*>(take(2 * kWarps * kSumStride * 4));
    squares = reinterpret_cast<float*>(take(2 * kStreamedSequences * kWarps * 4));
    turns = reinterpret_cast<float2*>(take(turn_bytes(single)));
    query = reinterpret_cast<float*>(take(kRowMaxColumns * 4));
    fresh = reinterpret_cast<T*>(take(2 * kRowMaxColumns * 4));
    shares = reinterpret_cast<StreamShare*>(take(products(layer_count) * int{sizeof(StreamShare)}));
    layers = reinterpret_cast<StreamedLayer*>(take(layer_count * int{sizeof(StreamedLayer)}));
    input = reinterpret_cast<T*>(at);
    hidden = input + input_stride<T, kColumns>(besides);
    chunks = reinterpret_cast<std::uint64_t*>(hidden + input_stride<T, kColumns>(widest));
  }
};

// Takes the hidden units of every layer, chunk by chunk, while the block still computes its own.
template <class T, int kColumns>
__device__ void take_hidden(const StreamedStep<T>& op, const Shared<T, kColumns>& shared, int worker, int thread) {
  constexpr int kRun = 16 / int{sizeof(T)}, kAhead = 2;
  const int runs = (op.units + 7) / 8 * 8 / kRun, all = padded_inner<kColumns>((op.units + 7) / 8 * 8) / kRun;
  const int chunks = (all + kTakers - 1) / kTakers;
  unsigned phase = 0;
  for (int l = 0; l < op.layers; ++l) {
    if (op.shares[(4 * l + 3) * op.workers + worker].count == 0) continue;
    const T* from = reinterpret_cast<const T*>(op.exchange + op.layer[l].hidden);
    barrier_wait(shared.chunks + kMostChunks, phase);
    phase ^= 1;
    Words<4> x[kAhead];
    bool there[kAhead] = {};
    for (int c = 0; c < chunks; ++c) {
      await([&] {
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          if (there[i]) continue;
          const int run = (c + i) * kTakers + thread;
          x[i] = {};
          if (run < runs) x[i] = look4(from + run * kRun);
          there[i] = sent(x[i]);
        }
        return __all_sync(0xffffffffu, there[0]) != 0;
      });
      const int run = c * kTakers + thread;
      if (run < all)
        *reinterpret_cast<uint4*>(shared.hidden + run * kRun) =
            uint4{x[0].word[0], x[0].word[1], x[0].word[2], x[0].word[3]};
      barrier_arrive(shared.chunks + c);
#pragma unroll
      for (int i = 0; i + 1 < kAhead; ++i) {
        x[i] = x[i + 1];
        there[i] = there[i + 1];
      }
      there[kAhead - 1] = false;
    }
  }
}

// Barrier of the threads that compute.
__device__ __forceinline__ void meet() {
  asm volatile("bar.sync 1, %0;" ::"n"(kReaders) : "memory");
}

// One warp's sums of 16 rows for each sequence. A warp takes of a slot its own tile and those 16, 32 and 48 further.
// Part: what a lane needs of one slot. load() reads it, where `tile` is tile_of() this warp's first tile and `input`
// points to what this lane needs of the input for it; `left` is the number of tiles from the first on; kAll: no tile
// lies beyond. Checks of every tile are half of the instructions of the loop over slots. Lanes beyond the sequences
// multiply with the last one's input; their sums are not stored.
template <class T, TileFormat kFormat>
struct TileSums;
// Of tensor-core products, which alternate between two sums.
struct TensorSums {
  float c[2][4] = {};

  __device__ __forceinline__ void store(float* to, int count, int lane) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      if (column < count) to[column * kTileRows + row] = c[0][i] + c[1][i];
    }
  }
};
template <>
struct TileSums<BFloat16, TileFormat::Plain> : TensorSums {
  struct Part {
    uint4 w[2];
    uint2 x[2];

    template <bool kAll>
    __device__ __forceinline__ void load(const unsigned char* tile, const BFloat16* input, int left, int) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (!kAll) w[i] = {}, x[i] = {};
        if (kAll || i * kWarps < left) {
          w[i] = *reinterpret_cast<const uint4*>(tile + i * kWarps * kTileBytes);
          x[i] = *reinterpret_cast<const uint2*>(input + i * kWarps * 16);
        }
      }
    }
  };

  __device__ static const unsigned char* tile_of(const unsigned char* tile, int lane) {
    return tile + lane * 16;
  }
  __device__ static const BFloat16* input_of(const BFloat16* input, int stride, int count, int lane) {
    return input + min(lane / 4, count - 1) * stride + lane % 4 * 4;
  }
  template <int kMost>
  __device__ __forceinline__ void add(const Part& part, const BFloat16*, int, int) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Word a[4] = {part.w[i].x, part.w[i].y, part.w[i].z, part.w[i].w};
      mma(c[i], a, part.x[i].x, part.x[i].y);
    }
  }
};
// Quantised weights become bf16 right before the product.
template <TileFormat kFormat>
struct TileSums<BFloat16, kFormat> : TensorSums {
  static constexpr int kTurns = slot_tiles(kFormat) / kWarps, kBytes = tile_bytes(kFormat);
  struct Part {
    TileCodes<kFormat> w[kTurns];
    uint4 x[kTurns];
    int left;

    template <bool kAll>
    __device__ __forceinline__ void load(const unsigned char* tile, const BFloat16* input, int tiles_left, int lane) {
      left = kAll ? kTurns * kWarps : tiles_left;
#pragma unroll
      for (int i = 0; i < kTurns; ++i) {
        if (kAll || i * kWarps < left) {
          w[i].load(tile + i * kWarps * kBytes, lane);
          x[i] = *reinterpret_cast<const uint4*>(input + i * kWarps * kTileGroup);
        }
      }
    }
  };

  __device__ static const unsigned char* tile_of(const unsigned char* tile, int) {
    return tile;
  }
  __device__ static const BFloat16* input_of(const BFloat16* input, int stride, int count, int lane) {
    return input + min(lane / 4, count - 1) * stride + lane % 4 * 8;
  }
  template <int kMost>
  __device__ __forceinline__ void add(const Part& part, const BFloat16*, int, int) {
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      if (i * kWarps < part.left) {
        Word a[2][4];
        part.w[i].weights(a);
        mma(c[0], a[0], part.x[i].x, part.x[i].y);
        mma(c[1], a[1], part.x[i].z, part.x[i].w);
      }
    }
  }
};
template <>
struct TileSums<float, TileFormat::Plain> {
  float c[kStreamedSequences] = {};
  struct Part {
    float4 w[2];
    int left;

    template <bool kAll>
    __device__ __forceinline__ void load(const unsigned char* tile, const float*, int tiles_left, int) {
      left = kAll ? 2 * kWarps : tiles_left;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (i * kWarps < left) w[i] = *reinterpret_cast<const float4*>(tile + i * kWarps * kTileBytes);
      }
    }
  };

  __device__ static const unsigned char* tile_of(const unsigned char* tile, int lane) {
    return tile + lane * 16;
  }
  __device__ static const float* input_of(const float* input, int, int, int lane) {
    return input + lane % 2 * 4;
  }
  template <int kMost>
  __device__ __forceinline__ void add(const Part& part, const float* input, int stride, int count) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (i * kWarps >= part.left) break;
      const float4 w = part.w[i];
#pragma unroll
      for (int b = 0; b < kMost; ++b) {
        if (b >= count) break;
        const float4 x = *reinterpret_cast<const float4*>(input + b * stride + i * kWarps * 8);
        c[b] = fmaf(w.x, x.x, fmaf(w.y, x.y, fmaf(w.z, x.z, fmaf(w.w, x.w, c[b]))));
      }
    }
  }
  __device__ __forceinline__ void store(float* to, int count, int lane) const {
#pragma unroll
    for (int b = 0; b < kStreamedSequences; ++b) {
      if (b >= count) break;
      const float sum = c[b] + __shfl_xor_sync(0xffffffffu, c[b], 1);
      if (lane % 2 == 0) to[b * kTileRows + lane / 2] = sum;
    }
  }
};

}  // namespace essh::cuda::device
