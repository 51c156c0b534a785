#pragma once
#include "essh/kernels/cuda/device/attention_rows.cuh"
#include "essh/kernels/cuda/device/coded_part.cuh"
#include "essh/kernels/cuda/device/tile_ring.cuh"
#include "essh/kernels/cuda/device/window_operands.cuh"

// The window step over caches of coded_rows.h, of a model whose kv heads lie side by side in wide rows. A block takes
// all heads of a share at once: one warp copies whole rows of keys and values through a ring in shared memory, share
// after share, and the others, each with one or two kv heads, read their columns behind it. Needs the bulk copies of
// sm_90.
namespace essh::cuda::device {

inline constexpr int kStreamMemory = 208 * 1024, kStreamSlots = 8;  // most slots
inline constexpr int kStreamWarps = 16, kStreamHeads = 32;          // most warps that compute, and kv heads

// One share of one sequence.
struct StreamedShare {
  int sequence, index, used;
  std::int64_t position, first;  // `first`: its first row in the cache
  int cached;                    // rows in the cache; the last share has the new row besides
  bool last;
};

// Rows of a slot: keys, then values.
struct StreamShape {
  int row_bytes, slot_rows, slots;

  __host__ __device__ int half() const { return slot_rows * row_bytes; }
  __host__ __device__ int slot_bytes() const { return 2 * half(); }
};

// kHeads: kv heads of a warp, the second one kStreamWarps further.
template <int kLanes, int kQueries, int kHeads>
struct WindowStream {
  using T = BFloat16;
  using Part = LanePart<T, true>;
  static constexpr int kSize = Part::kSize, kGroups = 32 / kLanes, kHeadDim = kLanes * kSize;
  using RowPart = CodedPart<kSize>;
  static constexpr int kRounds = 2, kRowsAtOnce = kRounds * kGroups;
  struct Query {  // this lane's part of it, and of its sum
    float query[kSize];
    WeightedSum<T, kSize> sum;
  };

  const StepShape& shape;
  const StepOperands<T>& x;
  const Shares& shares;
  const StreamShape& stream;

  __device__ int width() const { return shape.kv_heads * kHeadDim; }
  __device__ std::int64_t row_of(std::int64_t p) const { return shape.rows == 0 ? p : p % shape.rows; }

  // Calls body with every share of this block.
  template <class Body>
  __device__ __forceinline__ void for_each_share(int sequences, const Body& body) const {
    for (int item = static_cast<int>(blockIdx.x); item < sequences * shares.most; item += static_cast<int>(gridDim.x)) {
      const int sequence = item / shares.most, index = item % shares.most;
      const std::int64_t position = x.positions[sequence];
      const std::int64_t seen = position < shape.window ? position + 1 : shape.window, size = share_rows(seen);
      const int used = static_cast<int>((seen + size - 1) / size);
      if (index >= used) continue;
      const bool last = index == used - 1;
      const int count = static_cast<int>(last ? seen - index * size : size);
      body(StreamedShare{.sequence = sequence,
                         .index = index,
                         .used = used,
                         .position = position,
                         .first = row_of(position + 1 - seen + index * size),
                         .cached = last ? count - 1 : count,
                         .last = last});
    }
  }

  __device__ void copy(RingPlace place, int sequences) const {
    for_each_share(sequences, [&](const StreamedShare& share) {
      const auto* keys = reinterpret_cast<const std::byte*>(x.keys[share.sequence]);
      const auto* values = reinterpret_cast<const std::byte*>(x.values[share.sequence]);
      for (int r = 0; r < share.cached; r += stream.slot_rows) {
        const int count = min(stream.slot_rows, share.cached - r);
        unsigned char* const slot = place.open(static_cast<unsigned>(2 * count * stream.row_bytes));
        // A ring of rows may end within the slot.
        std::int64_t row = share.first + r;
        if (shape.rows != 0 && row >= shape.rows) row -= shape.rows;
        const int before = shape.rows != 0 && row + count > shape.rows ? static_cast<int>(shape.rows - row) : count;
        const auto take = [&](std::int64_t from, int to, int rows) {
          const auto bytes = static_cast<unsigned>(rows * stream.row_bytes);
          const std::int64_t offset = from * stream.row_bytes;
          copy_bulk(slot + to * stream.row_bytes, keys + offset, bytes, place.full());
          copy_bulk(slot + stream.half() + to * stream.row_bytes, values + offset, bytes, place.full());
        };
        take(row, 0, before);
        if (before < count) take(0, before, count - before);
        place.advance();
      }
    });
  }

  __device__ int head_of(int kv_head, int i) const { return kv_head * shape.group + min(i, shape.group - 1); }
  __device__ float* partial_of(const StreamedShare& share, int head) const {
    const std::int64_t heads = std::int64_t{shape.kv_heads} * shape.group;
    return shares.partial + (share.sequence * heads + head) * shares.most * share_floats(kHeadDim);
  }

  __device__ RowPart part_of(const unsigned char* row, int kv_head, int place) const {
    const auto* from = reinterpret_cast<const std::byte*>(row);
    return RowPart::load(from + kv_head * kHeadDim, from + width() + kv_head * 2, place, kHeadDim);
  }

  // Adds kRounds rows per group of lanes at a time; load(row, key, value).
  template <class Load>
  __device__ __forceinline__ void add_slot(Query (&queries)[kQueries], int rows, int group, const Load& load) const {
    for (int base = 0; base < rows; base += kRowsAtOnce) {
      RowPart keys[kRounds], values[kRounds];
      bool there[kRounds];
#pragma unroll
      for (int u = 0; u < kRounds; ++u) {
        const int row = base + u * kGroups + group;
        there[u] = row < rows;
        keys[u] = values[u] = RowPart::zero();
        if (there[u]) load(row, keys[u], values[u]);
      }
#pragma unroll
      for (int i = 0; i < kQueries; ++i)
        add_rows<kLanes>(queries[i].sum, queries[i].query, keys, values, [&](int u) { return there[u]; });
    }
  }

  // Attends to a share with the queries of this warp's kv heads.
  __device__ void attend(RingPlace& reader, const StreamedShare& share, int warp, int lane) const {
    const int place = lane % kLanes, group = lane / kLanes;
    Query queries[kHeads][kQueries];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const int kv_head = min(warp + h * kStreamWarps, shape.kv_heads - 1);
#pragma unroll
      for (int i = 0; i < kQueries; ++i)
        scale_query(Part::load(x.q.row(share.sequence) + head_of(kv_head, i) * kHeadDim, place, kHeadDim), shape.scale,
                    queries[h][i].query);
    }
    for (int r = 0; r < share.cached; r += stream.slot_rows) {
      const unsigned char* const slot = reader.take();
      const int rows = min(stream.slot_rows, share.cached - r);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const int kv_head = warp + h * kStreamWarps;
        if (kv_head >= shape.kv_heads) break;
        add_slot(queries[h], rows, group, [&](int row, RowPart& key, RowPart& value) {
          key = part_of(slot + row * stream.row_bytes, kv_head, place);
          value = part_of(slot + stream.half() + row * stream.row_bytes, kv_head, place);
        });
      }
      reader.give_back_each();
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const int kv_head = warp + h * kStreamWarps;
      if (kv_head >= shape.kv_heads) break;
      finish(queries[h], share, kv_head, group, place);
    }
  }
  // Adds the new row to the last share of a kv head, and sends the sums of the share.
  __device__ void finish(Query (&queries)[kQueries], const StreamedShare& share, int kv_head, int group,
                         int place) const {
    if (share.last) {
      // By the first group; zero times a value that is not finite would not be zero.
      const bool there[1] = {group == 0};
      Part key[1] = {Part::zero()}, value[1] = {Part::zero()};
      if (there[0]) {
        key[0] = Part::load(x.k.row(share.sequence) + kv_head * kHeadDim, place, kHeadDim);
        value[0] = Part::load(x.v.row(share.sequence) + kv_head * kHeadDim, place, kHeadDim);
      }
#pragma unroll
      for (int i = 0; i < kQueries; ++i)
        add_rows<kLanes>(queries[i].sum, queries[i].query, key, value, [&](int u) { return there[u]; });
      if (shape.appends && group == 0) append(share, key[0], value[0], kv_head, place);
      __syncwarp();
    }
#pragma unroll
    for (int i = 0; i < kQueries; ++i) merge_groups<kLanes>(queries[i].sum);
    if (group != 0) return;
#pragma unroll
    for (int i = 0; i < kQueries; ++i) {
      if (i >= shape.group) break;
      const auto& sum = queries[i].sum;
      if (share.used == 1) {
        write_part(sum, place, kHeadDim, x.out.row(share.sequence) + head_of(kv_head, i) * kHeadDim);
      } else {
        float* const to = partial_of(share, head_of(kv_head, i)) + share.index * share_floats(kHeadDim);
#pragma unroll
        for (int c = 0; c < kSize; c += 2)
          *reinterpret_cast<float2*>(to + place * kSize + c) = {sum.out[c], sum.out[c + 1]};
        if (place == 0) *reinterpret_cast<float2*>(to + share_floats(kHeadDim) - kShareEnds) = {sum.largest, sum.sum};
      }
    }
  }
  // By the first group of lanes.
  __device__ void append(const StreamedShare& share, const Part& key, const Part& value, int kv_head, int place) const {
    const std::int64_t row = row_of(share.position);
    for (const bool is_key : {true, false}) {
      const Part& part = is_key ? key : value;
      T* const cache = is_key ? x.keys[share.sequence] : x.values[share.sequence];
      float wide[kSize];
      part.unpack(wide);
      std::byte* const to = reinterpret_cast<std::byte*>(cache) + row * stream.row_bytes;
      store_coded<kLanes>(wide, to + kv_head * kHeadDim, to + width() + kv_head * 2, place, kHeadDim);
      if (kv_head == 0 && place == 0) pad_coded(to, width(), kHeadDim);
    }
  }

  // Queries from their shares, one by each group of lanes of this warp.
  __device__ void combine(const StreamedShare& share, int warp, int lane) const {
    const int heads = shape.kv_heads * shape.group;
    for (int first = warp * kGroups; first < heads; first += kStreamWarps * kGroups) {
      const int head = min(first + lane / kLanes, heads - 1);
      const auto sum = device::combine<T, kLanes>(partial_of(share, head), share.used, false, kHeadDim, lane);
      write_part(sum, lane % kLanes, kHeadDim, x.out.row(share.sequence) + head * kHeadDim);
    }
  }
};

// Barrier of the warps that compute.
__device__ __forceinline__ void meet_readers(int warps) {
  asm volatile("bar.sync 1, %0;" ::"r"(warps * 32) : "memory");
}

template <int kLanes, int kQueries, int kHeads>
__global__ void __launch_bounds__(32 * (kStreamWarps + 1), 1)
    attend_streamed(const __grid_constant__ StepShape shape, const __grid_constant__ StepOperands<BFloat16> x,
                    const __grid_constant__ Shares shares, int sequences, const __grid_constant__ StreamShape stream) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ std::uint64_t barriers[2 * kStreamSlots];
  __shared__ bool combines;
  const TileRing ring{memory, barriers, barriers + kStreamSlots, stream.slots, stream.slot_bytes()};
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warps = static_cast<int>(blockDim.x) / 32 - 1;
  if (threadIdx.x == 0) ring.init(warps * 32);
  __syncthreads();
  const WindowStream<kLanes, kQueries, kHeads> window{shape, x, shares, stream};
  if (warp == warps) {
    if (lane == 0) window.copy({ring}, sequences);
    return;
  }
  RingPlace reader{ring};
  window.for_each_share(sequences, [&](const StreamedShare& share) {
    window.attend(reader, share, warp, lane);
    if (share.used == 1) return;
    __threadfence();
    meet_readers(warps);
    // The counter wraps to zero, ready for the next kernel.
    const auto limit = static_cast<unsigned>(share.used - 1);
    if (threadIdx.x == 0) combines = atomicInc(shares.arrived + share.sequence, limit) == limit;
    meet_readers(warps);
    if (!combines) return;
    __threadfence();
    window.combine(share, warp, lane);
  });
#endif
}

}  // namespace essh::cuda::device
