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
// them, 64 outputs each by 16, 32, 64 or 128 rows: weights are the side of a tensor-core product that is never small.
// Where there are fewer rows, what lies behind them is multiplied too and dropped. Each block of the cluster finishes
// some of the rows: the other blocks send their partial sums, which are added in the order of the blocks. A product
// whose result is normalised next leaves the result times the gain, and the squares of each row summed over the columns
// of a cluster; a third warp of the next product computes the root mean squares while warp groups multiply.
namespace essh::cuda {
namespace {

constexpr int kInner = 64;             // inputs of a tile
constexpr int kRowBytes = kInner * 2;  // of a tile
constexpr int kGroupOutputs = 64;      // of a warp group
constexpr int kMostSlots = 32;
constexpr Index kMostRows = 128, kFew = 64;
constexpr Index kRoom = 210 * 1024;      // of shared memory, for tiles
constexpr Index kSlack = 1024;           // for their alignment
constexpr Index kMostApart = 12 * 1024;  // bytes of received sums that do not share memory with tiles
// Weights on their way to a block at once. With more, what else goes through the L2 cache waits for them, x above all.
constexpr Index kAhead = 72 * 1024, kAheadOfMany = 48 * 1024;

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
  int block_rows;     // of a cluster
  int tiles;          // of the inputs
  int slots;          // of the ring of weights
  int ahead;          // slots on their way at once
  int next_from;      // slot of weights from which on the next kernel may start
  int input_rows;     // of a tile: block_rows, rounded up to a multiple of eight
  int input_slots;    // of the ring of inputs
  bool at_once;       // all inputs have a place
  int ring;           // where it begins in shared memory, in bytes behind the ring of inputs
  int rows_of_block;  // that a block of a cluster finishes
  int received;       // offset of the partial sums of other blocks, in bytes from the ring of inputs
  bool place_apart;   // that memory never holds tiles
  bool aligned;       // four outputs can be read and written at once
};

// Warp groups have 64 outputs, which may be of two matrices (kParts), and kRows rows each: kGroups times kHalves have
// those of a block. kTeams of all these take slots in turns, of kDepth tiles. kSplit blocks are a cluster.
template <int kGroups, int kParts, int kRows, int kHalves, int kTeams, int kSplit>
struct Layout {
  static constexpr int kCols = kGroups * kGroupOutputs / kParts, kDepth = kGroups > 2 || kSplit > 3 ? 1 : 2;
  static constexpr int kConsumers = 128 * kGroups * kHalves * kTeams, kThreads = kConsumers + 96;
  static constexpr int kTileBytes = kGroups * kGroupOutputs * kRowBytes, kSlotBytes = kDepth * kTileBytes;
  static constexpr int kSums = kGroups * kGroupOutputs, kLine = kSums + 4;  // of a row; floats between two rows
  static constexpr int kPacks = kCols / 4;
  // Rows that a block finishes, a multiple of eight. A thread does four outputs of every kStep-th, kMostPacks times.
  static constexpr int kMostFinished = ((kHalves * kRows + kSplit - 1) / kSplit + 7) / 8 * 8;
  static constexpr int kStep = kConsumers / kPacks, kMostPacks = (kMostFinished + kStep - 1) / kStep;
  // Likewise for the sums that it sends to another block, four of every kSentStep-th row.
  static constexpr int kSentStep = kConsumers / (kSums / 4), kMostSent = (kMostFinished + kSentStep - 1) / kSentStep;
  static_assert(kConsumers % kPacks == 0 && kConsumers % (kSums / 4) == 0);
  static_assert(kMostFinished <= kConsumers && (kParts == 1 || kDepth == 1));
};
__device__ __forceinline__ float4 added(float4 x, float4 y) {
  return {x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w};
}
constexpr int kInputTiles = 8;  // of a copy, if all inputs have a place

template <int kGroups, int kParts, int kRows, int kHalves, int kTeams, int kSplit, class Out>
__global__ void __launch_bounds__(Layout<kGroups, kParts, kRows, kHalves, kTeams, kSplit>::kThreads)
    few_row_product(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap weight_map,
                    const __grid_constant__ CUtensorMap up_map, FewRows<Out> op) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using namespace device;
  using L = Layout<kGroups, kParts, kRows, kHalves, kTeams, kSplit>;
  extern __shared__ unsigned char memory[];
  __shared__ std::uint64_t weights_full[kMostSlots], weights_empty[kMostSlots], inputs_full[kMostSlots],
      inputs_empty[kMostSlots], sums_came;
  constexpr int kCols = L::kCols;
  constexpr bool kLeaves = kParts == 1 && sizeof(Out) == 2;  // may begin the next norm
  __shared__ float inverse[L::kMostFinished];                // of the rows that it finishes, 1 / root mean square
  unsigned char* const inputs = memory + ((1024u - shared_address(memory)) & 1023u);
  unsigned char* const ring = inputs + op.ring;
  const int tile_bytes = op.input_rows * kRowBytes, input_tiles = op.at_once ? kInputTiles : L::kDepth;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int rank = static_cast<int>(cluster_rank()), column = static_cast<int>(blockIdx.x) / kSplit * kCols;
  const int first_row = static_cast<int>(blockIdx.y) * op.block_rows, rows = min(op.block_rows, op.rows - first_row);
  // In slots of weights.
  const int all = (op.tiles + L::kDepth - 1) / L::kDepth;
  const int begin = all * rank / kSplit, count = all * (rank + 1) / kSplit - begin;
  const auto finished_by = [&](int block) { return max(0, min(op.rows_of_block, rows - block * op.rows_of_block)); };
  const int mine = finished_by(rank);
  if (warp == L::kConsumers / 32) {
    if (lane == 0) {
      for (int i = 0; i < op.slots; ++i) {
        barrier_init(weights_full + i, 1);
        barrier_init(weights_empty + i, 4 * kGroups * kHalves);
      }
      prefetch(weight_map);
      if constexpr (kParts == 2) prefetch(up_map);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
  } else if (thread == L::kConsumers + 32) {
    for (int i = 0; i < op.input_slots; ++i) {
      barrier_init(inputs_full + i, 1);
      barrier_init(inputs_empty + i, 4 * kGroups * kHalves);
    }
    barrier_init(&sums_came, 1);
    barrier_expect(&sums_came, static_cast<unsigned>((kSplit - 1) * mine * L::kSums) * unsigned{sizeof(float)});
    prefetch(x_map);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncthreads();
  if (op.place_apart) cluster_arrive_relaxed();
  if (warp >= L::kConsumers / 32) {
    if (warp == L::kConsumers / 32 && lane == 0) {
      std::uint64_t once;
      asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once));
      for (int i = 0, slot = 0, round = 0, came = 0, came_round = 0; i < count; ++i) {
        if (i == op.next_from) let_next_start();
        if (round > 0) barrier_wait(weights_empty + slot, (round - 1) & 1);
        if (i >= op.ahead) {
          barrier_wait(weights_full + came, came_round & 1);
          if (++came == op.slots) {
            came = 0;
            ++came_round;
          }
        }
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
      if (op.next_from >= count) let_next_start();
    }
    if (warp == L::kConsumers / 32 + 1 && lane == 0) {
      after_previous();
      const int copies = (count * L::kDepth + input_tiles - 1) / input_tiles, copy_bytes = tile_bytes * input_tiles;
      for (int i = 0, slot = 0, round = 0; i < copies; ++i) {
        if (round > 0) barrier_wait(inputs_empty + slot, (round - 1) & 1);
        barrier_expect(inputs_full + slot, static_cast<unsigned>(copy_bytes));
        copy_tiles(x_map, inputs + slot * copy_bytes, first_row, begin * L::kDepth + i * input_tiles,
                   inputs_full + slot);
        if (++slot == op.input_slots) {
          slot = 0;
          ++round;
        }
      }
    }
    if (warp == L::kConsumers / 32 + 2) {
      if (!op.squares.empty()) {
        after_previous();
        for (int i = lane; i < mine; i += 32) {
          float sum = 0;
#pragma unroll
          for (int part = 0; part < int{NextNorm<BFloat16>::kMostParts}; ++part) {
            if (part < op.squares.rows) sum += op.squares(part, first_row + rank * op.rows_of_block + i);
          }
          inverse[i] = 1.0f / sqrtf(sum / static_cast<float>(op.tiles * kInner) + op.eps);
        }
        __threadfence_block();
      }
      __syncwarp();
      asm volatile("bar.arrive 1, %0;" ::"n"(L::kConsumers + 32) : "memory");
    }
    __syncwarp();
    if (!op.place_apart) cluster_arrive();
    cluster_wait();
    return;
  }

  // Of the rows that this block finishes, this thread's: own, own + kStep, ...; four outputs.
  const int own = thread / L::kPacks, own_pack = thread % L::kPacks, output = column + own_pack * 4;
  const int own_row = first_row + rank * op.rows_of_block + own;
  float gains[4] = {};  // of the next norm
  if constexpr (kLeaves) {
    for (int j = 0; j < 4 && !op.next.empty() && output + j < op.outputs; ++j) gains[j] = op.next_gain[output + j];
  }
  after_previous();
  const bool whole = op.aligned && output + 4 <= op.outputs;
  Pack<Out, 4> addends[L::kMostPacks];
  const bool adds = kParts == 1 && !op.addend.empty();
  if (adds && whole) {
#pragma unroll
    for (int n = 0; n < L::kMostPacks; ++n) {
      if (own + n * L::kStep < mine)
        addends[n] = *reinterpret_cast<const Pack<Out, 4>*>(op.addend.row(own_row + n * L::kStep) + output);
    }
  }
  float sums[kRows / 2];
#pragma unroll
  for (int i = 0; i < kRows / 2; ++i) sums[i] = 0;
  const int group = warp / 4 % kGroups, half = warp / 4 / kGroups % kHalves, team = warp / 4 / kGroups / kHalves;
  int slot = team, input_slot = team;
  unsigned phase = 0, input_phase = 0;
  int last = -1, last_inputs = 0;
  for (int i = team; i < count; i += kTeams) {
    const int tile = (op.at_once ? i : input_slot) * L::kDepth;
    barrier_wait(inputs_full + (op.at_once ? tile / kInputTiles : input_slot), input_phase);
    barrier_wait(weights_full + slot, phase);
    const auto weights = operand_at(shared_address(ring) + static_cast<unsigned>(slot * L::kSlotBytes) +
                                    static_cast<unsigned>(group * kGroupOutputs * kRowBytes));
    const auto x =
        operand_at(shared_address(inputs) + static_cast<unsigned>(tile * tile_bytes + half * kRows * kRowBytes));
    begin_products();
#pragma unroll
    for (int t = 0; t < L::kDepth; ++t) {
#pragma unroll
      for (int k = 0; k < kInner / 16; ++k)
        multiply_add(sums, weights + static_cast<std::uint64_t>((t * L::kTileBytes >> 4) + 2 * k),
                     x + static_cast<std::uint64_t>((t * tile_bytes >> 4) + 2 * k));
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
  // This warp has read its tiles. Sums overwrite tiles after the barriers: of this block for its own sums, of the
  // cluster for received ones.
  if (!op.place_apart) cluster_arrive();
  asm volatile("bar.sync 1, %0;" ::"n"(L::kConsumers + 32) : "memory");
  auto* const lines = reinterpret_cast<float*>(inputs);
  {
    float* const to = lines + team * rows * L::kLine + group * kGroupOutputs + warp % 4 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < kRows / 8; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int row = half * kRows + 8 * i + lane % 4 * 2 + j;
        if (row >= rows) continue;
        to[row * L::kLine] = sums[4 * i + j];
        to[row * L::kLine + 8] = sums[4 * i + 2 + j];
      }
    }
  }
  asm volatile("bar.sync 2, %0;" ::"n"(L::kConsumers) : "memory");
  const auto team_sum = [&](const float* from) {  // four sums of all teams
    float4 sum = *reinterpret_cast<const float4*>(from);
#pragma unroll
    for (int t = 1; t < kTeams; ++t) sum = added(sum, *reinterpret_cast<const float4*>(from + t * rows * L::kLine));
    return sum;
  };
  // The sums of other blocks, by block, without this one.
  auto* const received = reinterpret_cast<float*>(inputs + op.received);
  const int block_sums = op.rows_of_block * L::kSums;
  __syncwarp();
  cluster_wait();
#pragma unroll
  for (int other = 1; other < kSplit; ++other) {
    constexpr int kPacksOfRow = L::kSums / 4;
    const int to = rank + other < kSplit ? rank + other : rank + other - kSplit, theirs = finished_by(to);
    const int first = thread / kPacksOfRow, pack = thread % kPacksOfRow;
    const float* const from = lines + (to * op.rows_of_block + first) * L::kLine + pack * 4;
    const auto there =
                   address_in(received + (rank < to ? rank : rank - 1) * block_sums + first * L::kSums + pack * 4, to),
               counter = address_in(&sums_came, to);
#pragma unroll
    for (int n = 0; n < L::kMostSent; ++n) {
      if (first + n * L::kSentStep < theirs)
        send(there + static_cast<unsigned>(n * L::kSentStep * L::kSums) * unsigned{sizeof(float)},
             team_sum(from + n * L::kSentStep * L::kLine), counter);
    }
  }
  await_sent(&sums_came);
  if (mine == 0) return;
  // Without branches, so that the compiler interleaves the rows of a thread; rows beyond the last repeat the last.
  float y[L::kMostPacks][4];
#pragma unroll
  for (int n = 0; n < L::kMostPacks; ++n) {
    const int finished = min(own + n * L::kStep, mine - 1);
    const float* const own_sums = lines + (rank * op.rows_of_block + finished) * L::kLine + own_pack * 4;
    const float* const others = received + finished * L::kSums + own_pack * 4;
    const float factor = op.squares.empty() ? 1.0f : inverse[finished];
    float4 x[kParts];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int block = 0; block < kSplit; ++block) {
        const float4 next = block == rank
                                ? team_sum(own_sums + part * kCols)
                                : *reinterpret_cast<const float4*>(
                                      others + (block < rank ? block : block - 1) * block_sums + part * kCols);
        x[part] = block == 0 ? next : added(x[part], next);
      }
    }
    const float sums_of[4] = {x[0].x, x[0].y, x[0].z, x[0].w};
    if constexpr (kParts == 2) {
      const float ups[4] = {x[1].x, x[1].y, x[1].z, x[1].w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float gate = widen(narrow<BFloat16>(factor * sums_of[j]));
        y[n][j] = __fdividef(gate, 1.0f + __expf(-gate)) * widen(narrow<BFloat16>(factor * ups[j]));
      }
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) y[n][j] = op.scale * (factor * sums_of[j]);
    }
  }
#pragma unroll
  for (int n = 0; n < L::kMostPacks; ++n) {
    const int row = own_row + n * L::kStep;
    const bool there = own + n * L::kStep < mine;
    if (there) {
      if (kParts == 2 && op.kept.size > 0) {
#pragma unroll
        for (int j = 0; j < 4; ++j) y[n][j] = output + j >= op.kept[row] ? 0.0f : y[n][j];
      }
      Out* const to = op.y.row(row) + output;
      if (whole) {
        if (adds) {
#pragma unroll
          for (int j = 0; j < 4; ++j) y[n][j] += widen(addends[n].items[j]);
        }
        store(to, y[n]);
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (output + j >= op.outputs) continue;
          to[j] = narrow<Out>(y[n][j] += adds ? widen(op.addend.row(row)[output + j]) : 0.0f);
        }
      }
    }
    if constexpr (kLeaves) {
      if (op.next.empty()) continue;
      float squares = 0;
      if (there) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float rounded = output + j < op.outputs ? widen(narrow<BFloat16>(y[n][j])) : 0.0f;
          squares = fmaf(rounded, rounded, squares);
          y[n][j] = rounded * gains[j];
        }
        BFloat16* const next = op.next.row(row) + output;
        if (output + 4 <= op.outputs) {
          store(next, y[n]);
        } else {
          for (int j = 0; output + j < op.outputs; ++j) next[j] = narrow<BFloat16>(y[n][j]);
        }
      }
      // The threads of a row follow each other.
#pragma unroll
      for (int step = 1; step < L::kPacks; step *= 2) squares += __shfl_xor_sync(0xffffffffu, squares, step);
      if (there && own_pack == 0) op.next_squares(static_cast<Index>(blockIdx.x) / kSplit, row) = squares;
    }
  }
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

template <int kGroups, int kParts, int kRows, int kHalves, int kTeams, int kSplit, class Out>
bool launch_product(Stream& stream, const FewRowProduct<Out>& op, Index row_blocks = 1) {
  using L = Layout<kGroups, kParts, kRows, kHalves, kTeams, kSplit>;
  constexpr int kCols = L::kCols;
  const Index tiles = op.x.cols / kInner;
  const Index most = ((tiles + L::kDepth - 1) / L::kDepth + kSplit - 1) / kSplit;  // slots that a block reads
  const Index input_rows = ((op.x.rows + row_blocks - 1) / row_blocks + 7) / 8 * 8,
              rows = std::min(input_rows, op.x.rows), tile = input_rows * kRowBytes;
  const Index rows_of_block = (rows + kSplit - 1) / kSplit;
  const Index sums = kTeams * rows * L::kLine * Index{sizeof(float)};
  // Memory apart from the tiles can receive sums before this block has read all its tiles.
  const Index received = (kSplit - 1) * rows_of_block * L::kSums * Index{sizeof(float)};
  const bool place_apart = received <= kMostApart;
  const Index room = kRoom - (place_apart ? received : 0);
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
  // Behind the inputs lie weights, so that a warp group can read kRows rows, also where there are fewer.
  const Index ring_bytes = std::max<Index>(slots * L::kSlotBytes, kHalves * kRows * kRowBytes);
  const Index tile_bytes = std::max(input_bytes + ring_bytes, sums), place = place_apart ? tile_bytes : sums;
  const Index bytes = kSlack + std::max(tile_bytes, place + received);
  const Index ahead = op.x.rows > kFew ? kAheadOfMany : kAhead;
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
         {.grid = dim3(static_cast<unsigned>(blocks), static_cast<unsigned>((op.x.rows + rows - 1) / rows)),
          .block = dim3(L::kThreads),
          .shared = static_cast<std::size_t>(bytes),
          .early = true,
          .cluster = kSplit},
         few_row_product<kGroups, kParts, kRows, kHalves, kTeams, kSplit, Out>, *x, *weight, *up,
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
             .block_rows = static_cast<int>(rows),
             .tiles = static_cast<int>(tiles),
             .slots = static_cast<int>(slots),
             .ahead = static_cast<int>(std::clamp<Index>(ahead / L::kSlotBytes, 2, slots)),
             .next_from = static_cast<int>(op.x.rows > kFew ? most : most / 2),
             .input_rows = static_cast<int>(input_rows),
             .input_slots = static_cast<int>(input_slots),
             .at_once = at_once,
             .ring = static_cast<int>(input_bytes),
             .rows_of_block = static_cast<int>(rows_of_block),
             .received = static_cast<int>(place),
             .place_apart = place_apart,
             .aligned = four(op.y) && four(op.addend),
         });
  return true;
}

}  // namespace

bool few_row_products(const Stream& stream) {
  return stream.own_products() && stream.architecture() == 90 && stream.early_launches() && encoder();
}

template <class Out>
bool multiply_few_rows(Stream& stream, const FewRowProduct<Out>& op) {
  if (!few_row_products(stream)) return false;
  if (op.x.rows < 1 || op.x.rows > kMostRows || op.x.cols < kInner || op.x.cols % kInner != 0) return false;
  // One block on each multiprocessor; of larger clusters than pairs not as many fit.
  const Index rows = op.x.rows, outputs = op.weight.rows, most = stream.multiprocessors();
  const auto fits = [&](Index cols, Index split, Index row_blocks = 1) {
    return (outputs + cols - 1) / cols * split * row_blocks <= (split > 3   ? most * 3 / 4
                                                                : split > 2 ? most * 9 / 10
                                                                            : most);
  };
  // With many rows and few outputs, blocks take half of the rows.
  const auto launch_for = [&]<int kGroups, int kParts, int kTeams, int kSplit>() {
    if (rows <= 16) return launch_product<kGroups, kParts, 16, 1, kTeams, kSplit>(stream, op);
    if (rows <= 32) return launch_product<kGroups, kParts, 32, 1, kTeams, kSplit>(stream, op);
    if (rows <= 64) return launch_product<kGroups, kParts, 64, 1, kTeams, kSplit>(stream, op);
    if constexpr (kGroups > 1)
      return launch_product<kGroups, kParts, 128, 1, kTeams, kSplit>(stream, op);
    else if (fits(64, kSplit, 2))
      return launch_product<kGroups, kParts, 64, 1, kTeams, kSplit>(stream, op, 2);
    else
      return launch_product<kGroups, kParts, 64, 2, 1, kSplit>(stream, op);
  };
  if constexpr (sizeof(Out) == 2) {
    if (!op.up.empty()) return fits(96, 2) && launch_for.template operator()<3, 2, 1, 2>();
  }
  // Many rows of many inputs: with more blocks to divide the inputs, each has fewer to wait for.
  if (op.x.cols >= 2 * outputs && rows > kFew && fits(128, 6)) return launch_product<2, 1, 128, 1, 1, 6>(stream, op);
  if (op.x.cols >= 2 * outputs && fits(64, 3)) return launch_for.template operator()<1, 1, 2, 3>();
  if (fits(64, 2)) return launch_for.template operator()<1, 1, 2, 2>();
  return fits(128, 2) && launch_for.template operator()<2, 1, 1, 2>();
}

template bool multiply_few_rows(Stream&, const FewRowProduct<BFloat16>&);
template bool multiply_few_rows(Stream&, const FewRowProduct<float>&);

}  // namespace essh::cuda
