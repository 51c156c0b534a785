#pragma once
#include "essh/kernels/cuda/device/attention_rows.cuh"
#include "essh/kernels/cuda/device/coded_tile.cuh"
#include "essh/kernels/cuda/device/tile_ring.cuh"
#include "essh/kernels/streamed_step.h"

// Shared memory of the streamed step and the products of its tiles.
namespace essh::cuda::device {

inline constexpr int kWarps = 16;               // warps that compute
inline constexpr int kReaders = kWarps * 32;    // their threads
inline constexpr int kThreads = kReaders + 64;  // one more warp copies weights, one clears the other exchange
inline constexpr int kSums = 128;               // values reduced over the warps at once, four threads each
inline constexpr int kSumStride = kSums + 8;    // the four threads read different banks
inline constexpr int kGroupColumns = 8;         // values of a channel advanced by one warp
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

// Shared memory except the ring.
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

  __host__ __device__ static constexpr int products(int layers) { return 4 * layers + 1; }
  __host__ __device__ static constexpr int bytes(int widest, int count, int layers) {
    return 2 * kWarps * kSumStride * 4 + 2 * kStreamedSequences * kWarps * 4 +
           2 * kStreamedSequences * kRowMaxColumns / 2 * 8 + kRowMaxColumns * 4 + 2 * kRowMaxColumns * 4 + 2 * 16 * 8 +
           layers * int{sizeof(StreamedLayer)} + products(layers) * int{sizeof(StreamShare)} +
           count * input_stride<T, kColumns>(widest) * int{sizeof(T)};
  }
  __device__ Shared(unsigned char* at, int layer_count) {
    const auto take = [&](int size) {
      auto* place = at;
      at += size;
      return place;
    };
    barriers = reinterpret_cast<std::uint64_t*>(take(2 * 16 * 8));
    sums = reinterpret_cast<float*>(take(2 * kWarps * kSumStride * 4));
    squares = reinterpret_cast<float*>(take(2 * kStreamedSequences * kWarps * 4));
    turns = reinterpret_cast<float2*>(take(2 * kStreamedSequences * kRowMaxColumns / 2 * 8));
    query = reinterpret_cast<float*>(take(kRowMaxColumns * 4));
    fresh = reinterpret_cast<T*>(take(2 * kRowMaxColumns * 4));
    shares = reinterpret_cast<StreamShare*>(take(products(layer_count) * int{sizeof(StreamShare)}));
    layers = reinterpret_cast<StreamedLayer*>(take(layer_count * int{sizeof(StreamedLayer)}));
    input = reinterpret_cast<T*>(at);
  }
};

// Barrier of the threads that compute.
__device__ __forceinline__ void meet() {
  asm volatile("bar.sync 1, %0;" ::"n"(kReaders) : "memory");
}

// One warp's sums of 16 rows for each sequence. A warp takes of a slot its own tile and those 16, 32 and 48 further.
// add(): of kSlots slots, where `tile` points to this warp's first tile in each and `input` to what this lane needs of
// the input for the first. Lanes beyond the sequences multiply with the last one's input; their sums are not stored.
// `left` is the number of tiles from the first on; kAll: no tile lies beyond. Checks of every tile are half of the
// instructions of the loop over slots.
template <class T, TileFormat kFormat>
struct TileSums;
template <>
struct TileSums<BFloat16, TileFormat::Plain> {
  float c[2][4] = {};

  __device__ static const BFloat16* input_of(const BFloat16* input, int stride, int count, int lane) {
    return input + min(lane / 4, count - 1) * stride + lane % 4 * 4;
  }
  template <int kMost, bool kAll, int kSlots>
  __device__ __forceinline__ void add(const unsigned char* const (&tile)[kSlots], const BFloat16* input, int, int left,
                                      int, int lane) {
    uint4 w[kSlots][2];
    uint2 x[kSlots][2];
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int at = (s * 2 + i) * kWarps;
        if (kAll || at < left) {
          w[s][i] = *reinterpret_cast<const uint4*>(tile[s] + i * kWarps * kTileBytes + lane * 16);
          x[s][i] = *reinterpret_cast<const uint2*>(input + at * 16);
        } else {
          w[s][i] = uint4{0, 0, 0, 0};
          x[s][i] = uint2{0, 0};
        }
      }
    }
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const Word a[4] = {w[s][i].x, w[s][i].y, w[s][i].z, w[s][i].w};
        mma(c[i], a, x[s][i].x, x[s][i].y);
      }
    }
  }
  __device__ __forceinline__ void store(float* to, int count, int lane) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      if (column < count) to[row * count + column] = c[0][i] + c[1][i];
    }
  }
};
// Quantised weights become bf16 right before the product.
template <TileFormat kFormat>
struct TileSums<BFloat16, kFormat> {
  float c[2][4] = {};

  __device__ static const BFloat16* input_of(const BFloat16* input, int stride, int count, int lane) {
    return input + min(lane / 4, count - 1) * stride + lane % 4 * 8;
  }
  template <int kMost, bool kAll, int kSlots>
  __device__ __forceinline__ void add(const unsigned char* const (&tile)[kSlots], const BFloat16* input, int, int left,
                                      int, int lane) {
    static_assert(kSlots == 1);
    constexpr int kTurns = slot_tiles(kFormat) / kWarps, kBytes = tile_bytes(kFormat);
    TileCodes<kFormat> w[kTurns];
    uint4 x[kTurns];
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      if (kAll || i * kWarps < left) {
        w[i].load(tile[0] + i * kWarps * kBytes, lane);
        x[i] = *reinterpret_cast<const uint4*>(input + i * kWarps * kTileGroup);
      }
    }
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      if (kAll || i * kWarps < left) {
        Word a[2][4];
        w[i].weights(a);
        mma(c[0], a[0], x[i].x, x[i].y);
        mma(c[1], a[1], x[i].z, x[i].w);
      }
    }
  }
  __device__ __forceinline__ void store(float* to, int count, int lane) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      if (column < count) to[row * count + column] = c[0][i] + c[1][i];
    }
  }
};
template <>
struct TileSums<float, TileFormat::Plain> {
  float c[kStreamedSequences] = {};

  __device__ static const float* input_of(const float* input, int, int, int lane) { return input + lane % 2 * 4; }
  template <int kMost, bool kAll, int kSlots>
  __device__ __forceinline__ void add(const unsigned char* const (&tile)[kSlots], const float* input, int stride,
                                      int left, int count, int lane) {
    static_assert(kSlots == 1);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!kAll && i * kWarps >= left) break;
      const float4 w = *reinterpret_cast<const float4*>(tile[0] + i * kWarps * kTileBytes + lane * 16);
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
      if (lane % 2 == 0) to[lane / 2 * count + b] = sum;
    }
  }
};

}  // namespace essh::cuda::device
