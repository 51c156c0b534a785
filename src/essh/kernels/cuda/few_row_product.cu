#include <cuda.h>

#include <optional>

#include "essh/device/cuda/launch.cuh"
#include "essh/kernels/cuda/device/cluster.cuh"
#include "essh/kernels/cuda/device/number.cuh"
#include "essh/kernels/cuda/device/tensor_copy.cuh"
#include "essh/kernels/cuda/device/tile_ring.cuh"
#include "essh/kernels/cuda/device/vectors.cuh"
#include "essh/kernels/cuda/device/wgmma.cuh"
#include "essh/kernels/cuda/few_row_product.h"

// A cluster of blocks takes some outputs, each block a part of the inputs. Two warps copy tiles of 64 inputs to shared
// memory, one of the weights, which does not wait for the previous kernel, and one of x. Warp groups multiply behind
// them, 64 rows each; where there are fewer rows, what lies behind them is multiplied too and dropped. Then the blocks
// of the cluster add their sums in order, each for some of the rows. A product whose result is normalised next leaves
// the result times the gain, and the squares of each row summed over the columns of a cluster; the next product divides
// by their root mean.
namespace essh::cuda {
namespace {

constexpr int kInner = 64;             // inputs of a tile
constexpr int kRowBytes = kInner * 2;  // of a tile
constexpr int kGroupRows = 64;         // of a warp group
constexpr int kMostSlots = 32;
constexpr Index kMostRows = 128;
constexpr Index kRoom = 210 * 1024, kSmallRoom = 160 * 1024;  // of shared memory, for tiles
constexpr Index kSlack = 1024;                                // for their alignment

template <class Out>
struct FewRows {
  Matrix<Out> y;
  Matrix<const Out> addend;
  Vector<const std::int32_t> kept;
  Matrix<const float> squares;  // of x; empty: x is not divided
  Matrix<BFloat16> next;        // y times the gain; empty: no norm follows
  const float* next_gain;
  Matrix<float> next_squares;
  float scale, eps;
  int rows, outputs;
  int tiles;          // of the inputs
  int slots;          // of the ring of weights
  int input_rows;     // of a tile: rows, rounded up to a multiple of eight
  int input_slots;    // of the ring of inputs
  bool at_once;       // all inputs have a place
  int ring;           // where it begins in shared memory, in bytes behind the ring of inputs
  int rows_of_block;  // that a block of a cluster finishes
  bool aligned;       // four outputs can be read and written at once
};

// kCols outputs of kParts matrices, kDepth tiles in a slot; kGroups warp groups of rows, kTeams of them that take slots
// in turns; kSplit blocks in a cluster.
template <int kCols, int kParts, int kGroups, int kTeams, int kSplit>
struct Layout {
  static constexpr int kDepth = kCols * kParts > 128 ? 1 : 2;
  static constexpr int kConsumers = 128 * kGroups * kTeams, kThreads = kConsumers + 64;
  static constexpr int kTileBytes = kCols * kParts * kRowBytes, kSlotBytes = kDepth * kTileBytes;
  static constexpr int kLine = kCols * kParts + 8;  // floats of a row of sums
  static constexpr int kPacks = kCols / 4;
  // Packs of four outputs that a thread finishes.
  static constexpr int kMostPacks = (kGroups * kGroupRows / kSplit * kPacks + kConsumers - 1) / kConsumers;
};
constexpr int kInputTiles = 8;  // of a copy, if all inputs have a place

template <int kCols, int kParts, int kGroups, int kTeams, int kSplit, class Out>
__global__ void __launch_bounds__(Layout<kCols, kParts, kGroups, kTeams, kSplit>::kThreads)
    few_row_product(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap weight_map,
                    const __grid_constant__ CUtensorMap up_map, FewRows<Out> op) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using namespace device;
  using L = Layout<kCols, kParts, kGroups, kTeams, kSplit>;
  extern __shared__ unsigned char memory[];
  __shared__ std::uint64_t weights_full[kMostSlots], weights_empty[kMostSlots], inputs_full[kMostSlots],
      inputs_empty[kMostSlots];
  // Of the rows that this block finishes: one over the root mean square, and the sum of squares of each pack of outputs
  // for the next norm.
  constexpr int kMostFinished = kGroups * kGroupRows / kSplit;
  constexpr bool kLeaves = kParts == 1 && sizeof(Out) == 2;
  __shared__ float inverse[kMostFinished], left_squares[kLeaves ? kMostFinished * L::kPacks : 1],
      next_gain[kLeaves ? kCols : 1];
  unsigned char* const inputs = memory + ((1024u - shared_address(memory)) & 1023u);
  unsigned char* const ring = inputs + op.ring;
  const int tile_bytes = op.input_rows * kRowBytes, input_tiles = op.at_once ? kInputTiles : L::kDepth;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int rank = static_cast<int>(cluster_rank()), column = static_cast<int>(blockIdx.x) / kSplit * kCols;
  // In slots of weights.
  const int all = (op.tiles + L::kDepth - 1) / L::kDepth;
  const int begin = all * rank / kSplit, count = all * (rank + 1) / kSplit - begin;
  if (warp == L::kConsumers / 32) {
    if (lane == 0) {
      for (int i = 0; i < op.slots; ++i) {
        barrier_init(weights_full + i, 1);
        barrier_init(weights_empty + i, 4 * kGroups);
      }
      prefetch(weight_map);
      if constexpr (kParts == 2) prefetch(up_map);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
  } else if (thread == L::kConsumers + 32) {
    for (int i = 0; i < op.input_slots; ++i) {
      barrier_init(inputs_full + i, 1);
      barrier_init(inputs_empty + i, 4 * kGroups);
    }
    prefetch(x_map);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  if constexpr (kLeaves) {
    if (!op.next.empty() && thread < kCols && column + thread < op.outputs)
      next_gain[thread] = op.next_gain[column + thread];
  }
  __syncthreads();
  if (warp >= L::kConsumers / 32) {
    if (warp == L::kConsumers / 32 && lane == 0) {
      std::uint64_t once;
      asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once));
      for (int i = 0, slot = 0, round = 0; i < count; ++i) {
        if (round > 0) barrier_wait(weights_empty + slot, (round - 1) & 1);
        unsigned char* const to = ring + slot * L::kSlotBytes;
        barrier_expect(weights_full + slot, L::kSlotBytes);
        copy_tiles_once(weight_map, to, column, (begin + i) * L::kDepth, weights_full + slot, once);
        if constexpr (kParts == 2)
          copy_tiles_once(up_map, to + kCols * L::kDepth * kRowBytes, column, (begin + i) * L::kDepth,
                          weights_full + slot, once);
        if (++slot == op.slots) {
          slot = 0;
          ++round;
        }
      }
      let_next_start();
    }
    if (warp > L::kConsumers / 32 && lane == 0) {
      after_previous();
      const int copies = (count * L::kDepth + input_tiles - 1) / input_tiles, copy_bytes = tile_bytes * input_tiles;
      for (int i = 0, slot = 0, round = 0; i < copies; ++i) {
        if (round > 0) barrier_wait(inputs_empty + slot, (round - 1) & 1);
        barrier_expect(inputs_full + slot, static_cast<unsigned>(copy_bytes));
        copy_tiles(x_map, inputs + slot * copy_bytes, 0, begin * L::kDepth + i * input_tiles, inputs_full + slot);
        if (++slot == op.input_slots) {
          slot = 0;
          ++round;
        }
      }
    }
    __syncwarp();
    cluster_arrive();
    cluster_wait();
    cluster_arrive();
    cluster_wait();
    return;
  }

  after_previous();
  const int mine = min(op.rows_of_block, op.rows - rank * op.rows_of_block) * L::kPacks;
  Pack<Out, 4> addends[L::kMostPacks];
  const bool adds = kParts == 1 && !op.addend.empty();
  const auto row_of = [&](int i) { return rank * op.rows_of_block + i / L::kPacks; };
  const auto output_of = [&](int i) { return column + i % L::kPacks * 4; };
  if (adds && op.aligned) {
#pragma unroll
    for (int n = 0; n < L::kMostPacks; ++n) {
      const int i = thread + n * L::kConsumers;
      if (i < mine && output_of(i) + 4 <= op.outputs)
        addends[n] = *reinterpret_cast<const Pack<Out, 4>*>(op.addend.row(row_of(i)) + output_of(i));
    }
  }
  if (!op.squares.empty()) {
    // Four threads have a row, and ask for all of their parts at once.
    const int row = thread / 4, parts = static_cast<int>(op.squares.rows);
    if (row < kMostFinished) {
      float sum = 0;
      if (row_of(row * L::kPacks) < op.rows) {
#pragma unroll
        for (int i = 0; i < int{NextNorm<BFloat16>::kMostParts} / 4; ++i) {
          const int part = i * 4 + thread % 4;
          if (part < parts) sum += op.squares(part, row_of(row * L::kPacks));
        }
      }
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      if (thread % 4 == 0) inverse[row] = 1.0f / sqrtf(sum / static_cast<float>(op.tiles * kInner) + op.eps);
    }
  }
  float sums[kParts][kCols / 2];
#pragma unroll
  for (int part = 0; part < kParts; ++part)
#pragma unroll
    for (int i = 0; i < kCols / 2; ++i) sums[part][i] = 0;
  const int group = warp / 4 % kGroups, team = warp / 4 / kGroups;
  int slot = team, input_slot = team;
  unsigned phase = 0, input_phase = 0;
  int last = -1, last_inputs = 0;
  for (int i = team; i < count; i += kTeams) {
    const int tile = (op.at_once ? i : input_slot) * L::kDepth;
    barrier_wait(inputs_full + (op.at_once ? tile / kInputTiles : input_slot), input_phase);
    barrier_wait(weights_full + slot, phase);
    const auto a_at =
        operand_at(shared_address(inputs) + static_cast<unsigned>(tile * tile_bytes + group * kGroupRows * kRowBytes));
    const auto b_at = operand_at(shared_address(ring) + static_cast<unsigned>(slot * L::kSlotBytes));
    begin_products();
#pragma unroll
    for (int t = 0; t < L::kDepth; ++t) {
#pragma unroll
      for (int k = 0; k < kInner / 16; ++k) {
        const auto a = a_at + static_cast<std::uint64_t>((t * tile_bytes >> 4) + 2 * k);
#pragma unroll
        for (int part = 0; part < kParts; ++part)
          multiply_add(sums[part], a,
                       b_at + static_cast<std::uint64_t>(((part * L::kDepth + t) * kCols * kRowBytes >> 4) + 2 * k));
      }
    }
    end_products();
    wait_for_products<1>();
    if (lane == 0 && last >= 0) {
      barrier_arrive(weights_empty + last);
      barrier_arrive(inputs_empty + last_inputs);
    }
    last = slot;
    slot += kTeams;
    if (slot >= op.slots) {
      slot -= op.slots;
      phase ^= 1;
    }
    if (!op.at_once) {
      last_inputs = input_slot;
      input_slot += kTeams;
      if (input_slot >= op.input_slots) {
        input_slot -= op.input_slots;
        input_phase ^= 1;
      }
    }
  }
  wait_for_products<0>();
  // All tiles have been read: their place is free for the sums.
  asm volatile("bar.sync 1, %0;" ::"n"(L::kConsumers) : "memory");
  auto* const lines = reinterpret_cast<float*>(inputs);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = group * kGroupRows + warp % 4 * 16 + half * 8 + lane / 4;
    if (row >= op.rows) continue;
    float* const line = lines + (team * op.rows + row) * L::kLine + lane % 4 * 2;
#pragma unroll
    for (int part = 0; part < kParts; ++part)
#pragma unroll
      for (int i = 0; i < kCols / 8; ++i)
        *reinterpret_cast<float2*>(line + part * kCols + 8 * i) =
            make_float2(sums[part][4 * i + 2 * half], sums[part][4 * i + 2 * half + 1]);
  }
  __syncwarp();
  cluster_arrive();
  cluster_wait();
#pragma unroll
  for (int n = 0; n < L::kMostPacks; ++n) {
    const int i = thread + n * L::kConsumers;
    if (i >= mine) break;
    const int row = row_of(i), output = output_of(i);
    float x[kParts][4];
    const float factor = op.squares.empty() ? 1.0f : inverse[i / L::kPacks];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const auto at = shared_address(lines + row * L::kLine + part * kCols + i % L::kPacks * 4);
      const auto team_bytes = static_cast<unsigned>(op.rows * L::kLine) * unsigned{sizeof(float)};
      float4 there[kSplit][kTeams];
#pragma unroll
      for (int r = 0; r < kSplit; ++r)
#pragma unroll
        for (int t = 0; t < kTeams; ++t) there[r][t] = load_from(at + static_cast<unsigned>(t) * team_bytes, r);
      float4 sum = there[0][0];
#pragma unroll
      for (int j = 1; j < kSplit * kTeams; ++j) {
        const float4 other = there[j / kTeams][j % kTeams];
        sum.x += other.x;
        sum.y += other.y;
        sum.z += other.z;
        sum.w += other.w;
      }
      x[part][0] = factor * sum.x;
      x[part][1] = factor * sum.y;
      x[part][2] = factor * sum.z;
      x[part][3] = factor * sum.w;
    }
    float y[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (kParts == 2) {
        const float gate = widen(narrow<BFloat16>(x[0][j]));
        y[j] = __fdividef(gate, 1.0f + __expf(-gate)) * widen(narrow<BFloat16>(x[1][j]));
        if (op.kept.size > 0 && output + j >= op.kept[row]) y[j] = 0;
      } else {
        y[j] = op.scale * x[0][j];
      }
    }
    Out* const to = op.y.row(row) + output;
    if (op.aligned && output + 4 <= op.outputs) {
      if (adds) {
#pragma unroll
        for (int j = 0; j < 4; ++j) y[j] += widen(addends[n].items[j]);
      }
      store(to, y);
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (output + j >= op.outputs) continue;
        to[j] = narrow<Out>(y[j] += adds ? widen(op.addend.row(row)[output + j]) : 0.0f);
      }
    }
    if constexpr (kLeaves) {
      if (op.next.empty()) continue;
      float squares = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float rounded = output + j < op.outputs ? widen(narrow<BFloat16>(y[j])) : 0.0f;
        squares = fmaf(rounded, rounded, squares);
        if (output + j < op.outputs) y[j] = rounded * next_gain[output - column + j];
      }
      left_squares[i] = squares;
      BFloat16* const there = op.next.row(row) + output;
      if (output + 4 <= op.outputs) {
        store(there, y);
      } else {
        for (int j = 0; output + j < op.outputs; ++j) there[j] = narrow<BFloat16>(y[j]);
      }
    }
  }
  if constexpr (kLeaves) {
    if (!op.next.empty()) {
      asm volatile("bar.sync 1, %0;" ::"n"(L::kConsumers) : "memory");
      if (thread * L::kPacks < mine) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < L::kPacks; ++i) sum += left_squares[thread * L::kPacks + i];
        op.next_squares(static_cast<Index>(blockIdx.x) / kSplit, row_of(thread * L::kPacks)) = sum;
      }
    }
  }
  __syncwarp();
  cluster_arrive();
  cluster_wait();  // others may still read the sums of this block
#endif
}

using Encode = decltype(&cuTensorMapEncodeTiled);
Encode encoder() {
  static const Encode found = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult result{};
    constexpr const char* kName = "cuTensorMapEncodeTiled";
#if CUDART_VERSION >= 12050
    const auto status = cudaGetDriverEntryPointByVersion(kName, &entry, 12000, cudaEnableDefault, &result);
#else
    const auto status = cudaGetDriverEntryPoint(kName, &entry, cudaEnableDefault, &result);
#endif
    return status == cudaSuccess && result == cudaDriverEntryPointSuccess ? reinterpret_cast<Encode>(entry) : nullptr;
  }();
  return found;
}

// Tiles of `rows` rows of this matrix, kInner numbers each, in copies of `tiles` of them; outside of the matrix they
// are zero.
std::optional<CUtensorMap> tiles_of(Matrix<const BFloat16> matrix, Index rows, Index tiles) {
  if (reinterpret_cast<std::uintptr_t>(matrix.data) % 16 != 0 || matrix.stride % 8 != 0) return {};
  CUtensorMap map;
  const auto size = [](Index count) { return static_cast<cuuint64_t>(count); };
  const cuuint64_t sizes[] = {kInner, size(matrix.rows), size(matrix.cols / kInner)};
  const cuuint64_t strides[] = {size(matrix.stride) * 2, kRowBytes};
  const cuuint32_t box[] = {kInner, static_cast<cuuint32_t>(rows), static_cast<cuuint32_t>(tiles)};
  const cuuint32_t steps[] = {1, 1, 1};
  const auto status = encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<BFloat16*>(matrix.data), sizes,
                                strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) return {};
  return map;
}

template <int kCols, int kParts, int kGroups, int kTeams, int kSplit, class Out>
bool launch_product(Stream& stream, const FewRowProduct<Out>& op) {
  using L = Layout<kCols, kParts, kGroups, kTeams, kSplit>;
  const Index tiles = op.x.cols / kInner;
  const Index most = ((tiles + L::kDepth - 1) / L::kDepth + kSplit - 1) / kSplit;  // slots that a block reads
  const Index input_rows = (op.x.rows + 7) / 8 * 8, tile = input_rows * kRowBytes;
  const Index rows_of_block = (op.x.rows + kSplit - 1) / kSplit;
  const Index sums = kTeams * op.x.rows * L::kLine * Index{sizeof(float)};
  // With few rows the ring leaves room for blocks of the next kernel, which is often a small one.
  const Index room = kParts == 1 && kSplit == 2 && op.x.rows <= 16 ? kSmallRoom : kRoom;
  // Many inputs at once, if all of them take a third of the room at most.
  const bool at_once = most * L::kDepth * tile <= room / 3;
  const Index input_tiles = at_once ? kInputTiles : L::kDepth;
  const auto places = [&](Index bytes, Index slot) {
    // A team releases a slot when it has begun with its next one.
    return std::clamp<Index>(bytes / slot, kTeams + 1, std::clamp<Index>(most, kTeams + 1, kMostSlots));
  };
  const Index input_slots =
      at_once ? (most * L::kDepth + kInputTiles - 1) / kInputTiles : places(room, L::kSlotBytes + L::kDepth * tile);
  const Index input_bytes = input_slots * input_tiles * tile;
  const Index slots = places(room - input_bytes, L::kSlotBytes);
  // Behind the inputs lie weights, so that a warp group can read 64 rows, also where there are fewer.
  const Index ring_bytes = std::max<Index>(slots * L::kSlotBytes, kGroups * kGroupRows * kRowBytes);
  const Index bytes = kSlack + std::max(input_bytes + ring_bytes, sums);
  const auto x = tiles_of(op.x, input_rows, input_tiles), weight = tiles_of(op.weight, kCols, L::kDepth),
             up = kParts == 2 ? tiles_of(op.up, kCols, L::kDepth) : weight;
  if (!x || !weight || !up) return false;
  const auto four = [](const auto& m) {
    return m.empty() || (reinterpret_cast<std::uintptr_t>(m.data) % (4 * sizeof(Out)) == 0 && m.stride % 4 == 0);
  };
  const Index clusters = (op.weight.rows + kCols - 1) / kCols, blocks = clusters * kSplit;
  NextNorm<BFloat16> next{};
  if (kParts == 1 && sizeof(Out) == 2 && op.next && clusters <= NextNorm<BFloat16>::kMostParts && four(op.next->y)) {
    op.next->parts = clusters;
    next = *op.next;
  }
  const auto name = stream.profile() ? fmt::format("few-row product {}{}x{}x{}", kParts == 2 ? "2 x " : "",
                                                   op.weight.rows, op.x.rows, op.x.cols)
                                     : "few-row product";
  launch(stream, name.c_str(),
         {.grid = dim3(static_cast<unsigned>(blocks)),
          .block = dim3(L::kThreads),
          .shared = static_cast<std::size_t>(bytes),
          .early = true,
          .cluster = kSplit},
         few_row_product<kCols, kParts, kGroups, kTeams, kSplit, Out>, *x, *weight, *up,
         FewRows<Out>{
             .y = op.y,
             .addend = op.addend,
             .kept = op.kept,
             .squares = op.squares,
             .next = next.y,
             .next_gain = next.gain.data,
             .next_squares = next.squares,
             .scale = op.scale,
             .eps = op.eps,
             .rows = static_cast<int>(op.x.rows),
             .outputs = static_cast<int>(op.weight.rows),
             .tiles = static_cast<int>(tiles),
             .slots = static_cast<int>(slots),
             .input_rows = static_cast<int>(input_rows),
             .input_slots = static_cast<int>(input_slots),
             .at_once = at_once,
             .ring = static_cast<int>(input_bytes),
             .rows_of_block = static_cast<int>(rows_of_block),
             .aligned = four(op.y) && four(op.addend),
         });
  return true;
}

}  // namespace

template <class Out>
bool multiply_few_rows(Stream& stream, const FewRowProduct<Out>& op) {
  if (!stream.own_products() || stream.architecture() != 90 || !stream.early_launches() || !encoder()) return false;
  if (op.x.rows < 1 || op.x.rows > kMostRows || op.x.cols < kInner || op.x.cols % kInner != 0) return false;
  // One block on each multiprocessor.
  const Index outputs = op.weight.rows, most = stream.multiprocessors();
  const auto fits = [&](Index cols, Index split) { return (outputs + cols - 1) / cols * split <= most; };
  if (!fits(96, 2)) return false;
  const bool many = op.x.rows > kGroupRows;
  if constexpr (sizeof(Out) == 2) {
    if (!op.up.empty())
      return many ? launch_product<96, 2, 2, 1, 2>(stream, op) : launch_product<96, 2, 1, 1, 2>(stream, op);
  }
  if (op.x.cols >= 2 * outputs && fits(96, 4))
    return many ? launch_product<96, 1, 2, 1, 4>(stream, op) : launch_product<96, 1, 1, 1, 4>(stream, op);
  if (fits(64, 2))
    return many ? launch_product<64, 1, 2, 1, 2>(stream, op) : launch_product<64, 1, 1, 2, 2>(stream, op);
  return many ? launch_product<96, 1, 2, 1, 2>(stream, op) : launch_product<96, 1, 1, 2, 2>(stream, op);
}

template bool multiply_few_rows(Stream&, const FewRowProduct<BFloat16>&);
template bool multiply_few_rows(Stream&, const FewRowProduct<float>&);

}  // namespace essh::cuda
