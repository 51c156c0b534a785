#include "essh/device/cuda/launch.cuh"
#include "essh/kernels/cuda/device/mix_step.cuh"
#include "essh/kernels/cuda/device/scan_chunk.cuh"
#include "essh/kernels/cuda/device/scan_sizes.cuh"
#include "essh/kernels/cuda/device/scan_tensor_forward.cuh"
#include "essh/kernels/cuda/scan_tables.h"
#include "essh/kernels/selective_scan.h"

// Three passes, the first and the last parallel over chunks: each chunk's contribution to the state, the states
// entering the chunks, and the outputs.
namespace essh {
namespace {

using namespace cuda;

__global__ void make_tables(Modes<const float> modes, float2* turns, float* gamma) {
  after_previous();
  const int mode = blockIdx.x, channel = blockIdx.y, j = threadIdx.x;
  const int item = channel * static_cast<int>(modes.decay.cols) + mode;
  if (j == 0)
    gamma[item] = static_cast<float>(log1p(exp(-fabs(static_cast<double>(modes.decay(channel, mode)))))) +
                  fmaxf(modes.decay(channel, mode), 0.0f);
  double s, c;
  sincos(static_cast<double>(modes.frequency(channel, mode)) * j, &s, &c);
  turns[item * (kTokens + 1) + j] = {static_cast<float>(c), static_cast<float>(s)};
}

template <class S>
struct ChunkIncrementShared {
  Gates<S> gates;
  Factor<S> w;
  alignas(16) typename S::Value v[kTokens * S::kValueStride];
};

template <class T>
__device__ int tokens_of(const T& op, int chunk) {
  const Index left = op.length - Index{chunk} * kTokens;
  return static_cast<int>(left < kTokens ? left : kTokens);
}

template <class S, class T>
__global__ void __launch_bounds__(kTileThreads)
    chunk_increments(SelectiveScanForward<T> op, ScanTables tables, Matrix<float> increments, float* through) {
  extern __shared__ __align__(16) unsigned char raw[];
  auto& s = *reinterpret_cast<ChunkIncrementShared<S>*>(raw);
  const int channel = blockIdx.x, chunk = blockIdx.y, sequence = blockIdx.z, count = tokens_of(op, chunk);
  const int modes = static_cast<int>(op.modes.decay.cols), width = static_cast<int>(op.width);
  const Index first = sequence * op.length + Index{chunk} * kTokens, row = Index{sequence} * gridDim.y + chunk;
  load_values<S>(s.v, op.v, first, count, Index{channel} * width, width);
  load_gates(s.gates, op.write, {}, op.clock, tables, channel, first, count, static_cast<float>(op.factor_range));
  make_state_writes(s.gates, tables, channel, count, s.w);
  for (int mode = threadIdx.x; mode < modes; mode += kTileThreads)
    through[(row * gridDim.x + channel) * modes + mode] = s.gates.through[mode];
  __syncthreads();
  float* to = increments.row(row) + Index{channel} * 2 * modes * width;
  multiply<S::kTensor, S::kInner, S::kValues>(
      [&](int part, int p, float x, float y) {
        if (part >= 2 * modes) return;
        if (p < width) to[part * width + p] = x;
        if (p + 1 < width) to[part * width + p + 1] = y;
      },
      term<kTokens>(s.w.turned(), Tile<typename S::Value, S::kValueStride, 1>{s.v}));
}

// One thread carries one value of one mode through the chunks. In: `states` holds contributions. Out: entering states.
// S: of the states that enter and leave.
template <class S>
__global__ void carry_states(Index sequences, Index length, int channels, int modes, int width,
                             Vector<const float* const> entering, ScanTables tables, const float* through,
                             Matrix<float> states, Vector<float* const> leaving) {
  after_previous();
  const Index item = Index{blockIdx.x} * blockDim.x + threadIdx.x;
  if (item >= sequences * channels * modes * width) return;
  const int p = static_cast<int>(item % width);
  const Index track = item / width;  // [sequence][channel][mode]
  const int mode = static_cast<int>(track % modes), channel = static_cast<int>(track / modes % channels);
  const Index sequence = track / modes / channels, chunks = (length + kTokens - 1) / kTokens;
  const Index column = (Index{channel} * modes + mode) * 2 * width + p;
  const float2* turns = tables.turns_of(channel, mode);
  float x = 0, y = 0;
  if (!entering.empty()) {
    const S* from = reinterpret_cast<const S*>(entering[sequence]);
    x = widen(from[column]);
    y = widen(from[column + width]);
  }
  constexpr int kAhead = 8;
  for (Index begin = 0; begin < chunks; begin += kAhead) {
    float more_x[kAhead], more_y[kAhead], kept[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (begin + i >= chunks) break;
      const Index row = sequence * chunks + begin + i;
      more_x[i] = states(row, column);
      more_y[i] = states(row, column + width);
      kept[i] = through[(row * channels + channel) * modes + mode];
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const Index chunk = begin + i;
      if (chunk >= chunks) break;
      const Index row = sequence * chunks + chunk, left = length - chunk * kTokens;
      states(row, column) = x;
      states(row, column + width) = y;
      const float2 turn = turns[left < kTokens ? left : kTokens];
      const float turned = kept[i] * (turn.x * x - turn.y * y) + more_x[i];
      y = kept[i] * (turn.y * x + turn.x * y) + more_y[i];
      x = turned;
    }
  }
  if (leaving.empty()) return;
  S* to = reinterpret_cast<S*>(leaving[sequence]);
  to[column] = narrow<S>(x);
  to[column + width] = narrow<S>(y);
}

template <class S>
struct OutputShared {
  Gates<S> gates;
  Factor<S> q, k, b;
  alignas(16) float square[kTokens * S::kSquareStride];
  alignas(16) float state[S::kInner * S::kStateStride];
  alignas(16) typename S::Value v[kTokens * S::kValueStride];
};

template <class S, class T>
__global__ void __launch_bounds__(kTileThreads)
    chunk_outputs(SelectiveScanForward<T> op, ScanTables tables, Matrix<const float> states) {
  extern __shared__ __align__(16) unsigned char raw[];
  auto& s = *reinterpret_cast<OutputShared<S>*>(raw);
  const int channel = blockIdx.x, chunk = blockIdx.y, sequence = blockIdx.z, count = tokens_of(op, chunk);
  const int modes = static_cast<int>(op.modes.decay.cols), width = static_cast<int>(op.width);
  const Index first = sequence * op.length + Index{chunk} * kTokens, row = Index{sequence} * gridDim.y + chunk;
  const Index column = Index{channel} * width;
  load_values<S>(s.v, op.v, first, count, column, width);
  load_state<S>(s.state, states.row(row) + Index{channel} * 2 * modes * width, modes, width);
  load_gates(s.gates, op.write, op.read, op.clock, tables, channel, first, count, static_cast<float>(op.factor_range));
  make_interaction(s.gates, tables, channel, s.q, s.k);
  make_state_readout(s.gates, tables, channel, s.b);
  __syncthreads();
  make_square(s.gates, tables, channel, s.q, s.k, s.square);
  T* z = op.z.row(first) + column;
  const bool pairs =
      (reinterpret_cast<std::uintptr_t>(z) | static_cast<std::uintptr_t>(op.z.stride * sizeof(T))) % (2 * sizeof(T)) ==
      0;
  multiply<S::kTensor, kTokens, S::kValues>(
      [&](int t, int p, float x, float y) {
        if (t >= count || p >= width) return;
        T* place = z + t * op.z.stride + p;
        if (pairs && p + 1 < width) {
          const float both[2] = {x, y};
          store(place, both);
        } else {
          place[0] = narrow<T>(x);
          if (p + 1 < width) place[1] = narrow<T>(y);
        }
      },
      term<kTokens, Reach::Before>(Tile<float, S::kSquareStride, 1>{s.square},
                                   Tile<typename S::Value, S::kValueStride, 1>{s.v}),
      term<S::kInner>(s.b.rows(), Tile<float, S::kStateStride, 1>{s.state}));
}

// One thread advances one value of one channel by one token. S: of the states.
template <class T, class S>
__global__ void step(SelectiveStep<T> op) {
  const int width = static_cast<int>(op.width), modes = static_cast<int>(op.modes.decay.cols);
  const Index item = Index{blockIdx.x} * blockDim.x + threadIdx.x;
  if (item >= op.v.rows * op.v.cols) return;
  const Index sequence = item / op.v.cols, column = item % op.v.cols;
  const Index channel = column / width;
  const int p = static_cast<int>(column % width);
  if (op.kept.size > 0 && channel >= op.kept[sequence]) {
    op.z(sequence, column) = narrow<T>(0);
    return;
  }
  const float v = widen(op.v(sequence, column));
  const Index first = channel * modes * 2 * width + p;
  const S* entering = reinterpret_cast<const S*>(op.entering[sequence]) + first;
  S* leaving = reinterpret_cast<S*>(op.leaving[sequence]) + first;
  float z = 0;
  for (int mode = 0; mode < modes; ++mode) {
    const Index gate = channel * modes + mode;
    const float kept = expf(-(softplus(op.modes.decay(channel, mode)) + op.clock(sequence, gate)));
    float sine, cosine;
    sincosf(op.modes.frequency(channel, mode), &sine, &cosine);
    const float written = op.write(sequence, gate) * v;
    const int place = 2 * mode * width;
    const float a = widen(entering[place]), b = widen(entering[place + width]);
    const float x = kept * (cosine * a - sine * b) + written, y = kept * (sine * a + cosine * b);
    leaving[place] = narrow<S>(x);
    leaving[place + width] = narrow<S>(y);
    const float kc = op.modes.readout_cos(channel, mode);
    z += op.read(sequence, gate) *
         (x * kc - y * op.modes.readout_sin(channel, mode) - op.modes.zero_lag(channel, mode) * kc * written);
  }
  if (op.kept.size > 0) z *= sqrtf(static_cast<float>(op.modes.decay.rows) / static_cast<float>(op.kept[sequence]));
  op.z(sequence, column) = narrow<T>(z);
}

}  // namespace

void cuda::make_scan_tables(Stream& stream, const Modes<const float>& modes, float2* turns, float* gamma) {
  const dim3 grid(static_cast<unsigned>(modes.decay.cols), static_cast<unsigned>(modes.decay.rows));
  launch(stream, "scan_tables", {grid, kTokens + 1, 0, true}, make_tables, modes, turns, gamma);
}

namespace {

// The three passes around the states, which the kernels own: increments(grid, states, through), outputs(grid, states).
template <class Op, class Increments, class Outputs>
void scan(cuda::Stream& stream, const Op& op, const Matrix<float>& boundary, const Increments& increments,
          const Outputs& outputs) {
  const Index channels = op.modes.decay.rows, modes = op.modes.decay.cols, chunks = scan_chunks(op.length);
  const Index rows = op.sequences * chunks, state = 2 * channels * modes * op.width;
  Scratch scratch(stream);
  auto* turns = scratch.take<float2>(channels * modes * (kTokens + 1));
  auto* gamma = scratch.take<float>(channels * modes);
  auto* through = scratch.take<float>(rows * channels * modes);
  const auto states = boundary.empty() ? dense(scratch.take<float>(rows * state), rows, state) : boundary;
  make_scan_tables(stream, op.modes, turns, gamma);
  const ScanTables tables{turns, gamma, op.modes};
  const dim3 grid(static_cast<unsigned>(channels), static_cast<unsigned>(chunks), static_cast<unsigned>(op.sequences));
  const Index tracks = op.sequences * channels * modes * op.width;
  const auto run_passes = [&](Index threads, const Vector<float* const>& leaving) {
    increments(grid, tables, states, through);
    launch(stream, "scan_states", {blocks_for(tracks, threads), static_cast<unsigned>(threads), 0, true},
           op.narrow_states ? carry_states<BFloat16> : carry_states<float>, op.sequences, op.length,
           static_cast<int>(channels), static_cast<int>(modes), static_cast<int>(op.width), op.entering, tables,
           through, states, leaving);
    outputs(grid, tables, states);
  };
  // Trials leave no state, because it may overwrite the entering one.
  const Written results[] = {written(op.z), written(states)};
  const Index threads = carry_threads(stream, "scan states", tracks, op.sequences, chunks, results,
                                      [&](Index candidate) { run_passes(candidate, {}); });
  run_passes(threads, op.leaving);
}

template <class Op>
void tensor_scan(cuda::Stream& stream, const Op& op, const Matrix<float>& boundary) {
  with_tensor_width(op.width, [&]<int P>() {
    scan(
        stream, op, boundary,
        [&](dim3 grid, const ScanTables& tables, const Matrix<float>& states, float* through) {
          launch(stream, "scan_increments", {grid, kTileThreads, sizeof(TensorIncrementShared<P>), true},
                 tensor_increments<P, Op>, op, tables, states, through);
        },
        [&](dim3 grid, const ScanTables& tables, const Matrix<float>& states) {
          launch(stream, "scan_outputs", {grid, kTileThreads, sizeof(TensorOutputShared<P>), true},
                 tensor_outputs<P, Op>, op, tables, states);
        });
  });
}

}  // namespace

template <class T>
void run(cuda::Stream& stream, const SelectiveScanForward<T>& op) {
  if (op.sequences == 0 || op.length == 0) return;
  const Index modes = op.modes.decay.cols;
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (fits_tensor_scan(modes, op.width)) return tensor_scan(stream, op, op.boundary);
  }
  with_scan_sizes<T>(modes, op.width, [&]<class S>() {
    scan(
        stream, op, op.boundary,
        [&](dim3 grid, const ScanTables& tables, const Matrix<float>& states, float* through) {
          launch(stream, "scan_increments", {grid, kTileThreads, sizeof(ChunkIncrementShared<S>)},
                 chunk_increments<S, T>, op, tables, states, through);
        },
        [&](dim3 grid, const ScanTables& tables, const Matrix<float>& states) {
          launch(stream, "scan_outputs", {grid, kTileThreads, sizeof(OutputShared<S>)}, chunk_outputs<S, T>, op, tables,
                 states);
        });
  });
}

template <class T>
void run(cuda::Stream& stream, const SelectiveMix<T>& op) {
  if (op.sequences == 0 || op.length == 0) return;
  if (op.single_tokens() && op.modes.decay.cols <= device::kStepModes && op.width <= device::kStepWidth)
    return op.narrow_states ? device::launch_mix_step<T, BFloat16>(stream, op)
                            : device::launch_mix_step<T, float>(stream, op);
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (!op.single_tokens() && fits_tensor_scan(op.modes.decay.cols, op.width)) return tensor_scan(stream, op, {});
    Scratch scratch(stream);
    const auto gate = [&] {
      return dense(scratch.take<float>(op.v0.rows * op.write_logits.cols), op.v0.rows, op.write_logits.cols);
    };
    const auto write = gate(), read = gate(), clock = gate();
    run_parts(stream, op, write, read, clock);
  } else {
    run_parts(stream, op, op.write_logits, op.read_logits, op.clock_logits);
  }
}

template <class T>
void run(cuda::Stream& stream, const SelectiveStep<T>& op) {
  launch(stream, "selective_step", {blocks_for(op.v.rows * op.v.cols, 128), 128},
         op.narrow_states ? step<T, BFloat16> : step<T, float>, op);
}

template void run(cuda::Stream&, const SelectiveScanForward<float>&);
template void run(cuda::Stream&, const SelectiveScanForward<BFloat16>&);
template void run(cuda::Stream&, const SelectiveMix<float>&);
template void run(cuda::Stream&, const SelectiveMix<BFloat16>&);
template void run(cuda::Stream&, const SelectiveStep<float>&);
template void run(cuda::Stream&, const SelectiveStep<BFloat16>&);

}  // namespace essh
