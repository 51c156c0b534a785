#include "essh/device/cuda/launch.cuh"
#include "essh/kernels/cuda/device/scan_chunk.cuh"
#include "essh/kernels/cuda/device/scan_sizes.cuh"
#include "essh/kernels/cuda/device/scan_tensor_backward.cuh"
#include "essh/kernels/cuda/scan_tables.h"
#include "essh/kernels/selective_scan.h"

// Three passes like the forward scan, in reverse: each chunk's contribution to the gradient of its entering state, the
// gradients of the leaving states, and all other gradients chunk by chunk.
namespace essh {
namespace {

using namespace cuda;

template <class T>
__device__ int tokens_of(const T& op, int chunk) {
  const Index left = op.length - Index{chunk} * kTokens;
  return static_cast<int>(left < kTokens ? left : kTokens);
}

template <class S>
struct IncrementShared {
  Gates<S> gates;
  Factor<S> b;
  alignas(16) typename S::Value d_z[kTokens * S::kValueStride];
};

template <class S, class T>
__global__ void __launch_bounds__(kTileThreads)
    adjoint_increments(SelectiveScanBackward<T> op, ScanTables tables, Matrix<float> increments, float* through) {
  extern __shared__ __align__(16) unsigned char raw[];
  auto& s = *reinterpret_cast<IncrementShared<S>*>(raw);
  const int channel = blockIdx.x, chunk = blockIdx.y, sequence = blockIdx.z, count = tokens_of(op, chunk);
  const int modes = static_cast<int>(op.modes.decay.cols), width = static_cast<int>(op.width);
  const Index first = sequence * op.length + Index{chunk} * kTokens, row = Index{sequence} * gridDim.y + chunk;
  load_values<S>(s.d_z, op.d_z, first, count, Index{channel} * width, width);
  load_gates(s.gates, op.write, op.read, op.clock, tables, channel, first, count, static_cast<float>(op.factor_range));
  make_state_readout(s.gates, tables, channel, s.b);
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
      term<kTokens>(s.b.turned(), Tile<typename S::Value, S::kValueStride, 1>{s.d_z}));
}

// Like carry_states, from the last chunk to the first. In: `adjoints` holds contributions. Out: gradients of the
// leaving states.
__global__ void carry_adjoints(Index sequences, Index length, int channels, int modes, int width,
                               Matrix<const float> d_leaving, ScanTables tables, const float* through,
                               Matrix<float> adjoints, Matrix<float> d_entering) {
  const Index item = Index{blockIdx.x} * blockDim.x + threadIdx.x;
  if (item >= sequences * channels * modes * width) return;
  const int p = static_cast<int>(item % width);
  const Index track = item / width;
  const int mode = static_cast<int>(track % modes), channel = static_cast<int>(track / modes % channels);
  const Index sequence = track / modes / channels, chunks = (length + kTokens - 1) / kTokens;
  const Index column = (Index{channel} * modes + mode) * 2 * width + p;
  const float2* turns = tables.turns_of(channel, mode);
  float x = 0, y = 0;
  if (!d_leaving.empty()) {
    x = d_leaving(sequence, column);
    y = d_leaving(sequence, column + width);
  }
  constexpr int kAhead = 8;
  for (Index end = chunks; end > 0; end -= kAhead) {
    float more_x[kAhead], more_y[kAhead], kept[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (end - 1 - i < 0) break;
      const Index row = sequence * chunks + end - 1 - i;
      more_x[i] = adjoints(row, column);
      more_y[i] = adjoints(row, column + width);
      kept[i] = through[(row * channels + channel) * modes + mode];
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const Index chunk = end - 1 - i;
      if (chunk < 0) break;
      const Index row = sequence * chunks + chunk, left = length - chunk * kTokens;
      adjoints(row, column) = x;
      adjoints(row, column + width) = y;
      const float2 turn = turns[left < kTokens ? left : kTokens];
      const float turned = kept[i] * (turn.x * x + turn.y * y) + more_x[i];
      y = kept[i] * (turn.x * y - turn.y * x) + more_y[i];
      x = turned;
    }
  }
  if (d_entering.empty()) return;
  d_entering(sequence, column) = x;
  d_entering(sequence, column + width) = y;
}

// Gradients per token and mode; in every product one thread owns each entry.
template <class S>
struct GateGradients {
  float read[kTokens][S::kModes], write[kTokens][S::kModes];  // gates times their gradients
  float decay[kTokens][S::kModes];                            // gradient of the accumulated decay
  float theta[kTokens][S::kModes], readout_cos[kTokens][S::kModes], readout_sin[kTokens][S::kModes];
};

template <class S>
struct GradientShared {
  Gates<S> gates;
  Factor<S> q, k, b, w;
  GateGradients<S> sums;
  alignas(16) float square[kTokens * S::kSquareStride];
  alignas(16) float state[S::kInner * S::kStateStride];
  alignas(16) float adjoint[S::kInner * S::kStateStride];
  float dots[kTokens];  // d_z . v of each token
  alignas(16) typename S::Value v[kTokens * S::kValueStride];
  alignas(16) typename S::Value d_z[kTokens * S::kValueStride];
};

// Gradients of a direct mode (its decay is too large for factors), pair by pair.
template <class S>
__device__ void add_direct_mode(GradientShared<S>& s, const ScanTables& tables, int channel, int mode) {
  const auto& f = s.gates;
  for (int t = threadIdx.x; t < kTokens; t += kTileThreads) {
    float along = 0, theta = 0, on_cos = 0, on_sin = 0, later = 0;
    for (int other = 0; other < t; ++other) {
      const float d = s.square[t * S::kSquareStride + other] * f.write[other][mode];
      const auto pair = pair_response(f, tables, channel, mode, t, other);
      const float2 turn = tables.turns_of(channel, mode)[t - other];
      const float kept = decayed<S>(f.decay[t][mode] - f.decay[other][mode]);
      along += d * pair.along;
      theta += d * pair.across * static_cast<float>(t - other);
      on_cos += d * kept * turn.x;
      on_sin -= d * kept * turn.y;
    }
    for (int other = t + 1; other < kTokens; ++other) {
      later += s.square[other * S::kSquareStride + t] * f.read[other][mode] *
               pair_response(f, tables, channel, mode, other, t).along;
    }
    const float read = f.read[t][mode], write = f.write[t][mode];
    s.sums.read[t][mode] += read * along;
    s.sums.write[t][mode] += write * later;
    s.sums.decay[t][mode] += write * later - read * along;
    s.sums.theta[t][mode] += read * theta;
    s.sums.readout_cos[t][mode] += read * on_cos;
    s.sums.readout_sin[t][mode] += read * on_sin;
  }
}

template <class S, class T>
__global__ void __launch_bounds__(kTileThreads) chunk_gradients(SelectiveScanBackward<T> op, ScanTables tables,
                                                                Matrix<const float> adjoints, TableGradient* partial) {
  extern __shared__ __align__(16) unsigned char raw[];
  auto& s = *reinterpret_cast<GradientShared<S>*>(raw);
  auto& f = s.gates;
  using Values = Tile<typename S::Value, S::kValueStride, 1>;
  using TurnedValues = Tile<typename S::Value, 1, S::kValueStride>;
  using State = Tile<float, S::kStateStride, 1>;
  using TurnedState = Tile<float, 1, S::kStateStride>;
  const int channel = blockIdx.x, chunk = blockIdx.y, sequence = blockIdx.z, count = tokens_of(op, chunk);
  const int modes = static_cast<int>(op.modes.decay.cols), width = static_cast<int>(op.width);
  const Index first = sequence * op.length + Index{chunk} * kTokens, row = Index{sequence} * gridDim.y + chunk;
  const Index column = Index{channel} * width, state_column = Index{channel} * 2 * modes * width;
  load_values<S>(s.v, op.v, first, count, column, width);
  load_values<S>(s.d_z, op.d_z, first, count, column, width);
  load_state<S>(s.state, op.boundary.row(row) + state_column, modes, width);
  load_state<S>(s.adjoint, adjoints.row(row) + state_column, modes, width);
  load_gates(f, op.write, op.read, op.clock, tables, channel, first, count, static_cast<float>(op.factor_range));
  make_interaction(f, tables, channel, s.q, s.k);
  make_state_readout(f, tables, channel, s.b);
  make_state_writes(f, tables, channel, count, s.w);
  __syncthreads();
  make_square(f, tables, channel, s.q, s.k, s.square);

  // d_v = g^T d_z + w G
  multiply<S::kTensor, kTokens, S::kValues>(
      [&](int t, int p, float x, float y) {
        if (t >= count) return;
        if (p < width) op.d_v(first + t, column + p) = narrow<T>(x);
        if (p + 1 < width) op.d_v(first + t, column + p + 1) = narrow<T>(y);
      },
      term<kTokens, Reach::After>(Tile<float, 1, S::kSquareStride>{s.square}, Values{s.d_z}),
      term<S::kInner>(s.w.rows(), State{s.adjoint}));
  __syncthreads();

  // `square` becomes the gradient of g below the diagonal.
  multiply<S::kTensor, kTokens, kTokens, true>(
      [&](int t, int other, float x, float y) {
        if (other == t) s.dots[t] = x;
        if (other + 1 == t) s.dots[t] = y;
        s.square[t * S::kSquareStride + other] = other < t ? x : 0.0f;
        s.square[t * S::kSquareStride + other + 1] = other + 1 < t ? y : 0.0f;
      },
      term<S::kValues>(Values{s.d_z}, TurnedValues{s.v}));
  __syncthreads();

  // Gradients of the factors, converted at once to those of gates, decay, frequency and readout.
  const auto reading = [&](int t, int mode, float2 factor, float x, float y, float angle, float unit, int turn_at) {
    const float along = x * factor.x + y * factor.y, across = y * factor.x - x * factor.y;
    s.sums.read[t][mode] += along;
    s.sums.decay[t][mode] -= along;
    s.sums.theta[t][mode] += angle * across;
    const float2 turn = tables.turns_of(channel, mode)[turn_at];
    return float2{unit * (x * turn.x + y * turn.y), unit * (y * turn.x - x * turn.y)};
  };
  multiply<S::kTensor, kTokens, S::kInner>(
      [&](int t, int part, float x, float y) {
        const int mode = part / 2;
        s.sums.read[t][mode] = s.sums.decay[t][mode] = s.sums.theta[t][mode] = 0;
        if (mode >= modes) return;
        const float unit = f.direct[mode] ? 0.0f : f.read[t][mode] * decayed<S>(f.decay[t][mode] - f.centre[mode]);
        const float2 on = reading(t, mode, s.q.of(t, mode), x, y, static_cast<float>(t), unit, t);
        s.sums.readout_cos[t][mode] = on.x;
        s.sums.readout_sin[t][mode] = on.y;
      },
      term<kTokens, Reach::Before>(Tile<float, S::kSquareStride, 1>{s.square}, s.k.rows()));
  multiply<S::kTensor, kTokens, S::kInner>(
      [&](int t, int part, float x, float y) {
        const int mode = part / 2;
        if (mode >= modes) return;
        // b is the conjugate of the corresponding q.
        const float2 b = s.b.of(t, mode);
        const float unit = f.read[t][mode] * decayed<S>(f.decay[t][mode]);
        const float2 on = reading(t, mode, {b.x, -b.y}, x, -y, static_cast<float>(t + 1), unit, t + 1);
        s.sums.readout_cos[t][mode] += on.x;
        s.sums.readout_sin[t][mode] += on.y;
      },
      term<S::kValues>(Values{s.d_z}, TurnedState{s.state}));
  multiply<S::kTensor, kTokens, S::kInner>(
      [&](int t, int part, float x, float y) {
        const int mode = part / 2;
        if (mode >= modes) return;
        const float2 k = s.k.of(t, mode);
        const float along = x * k.x + y * k.y, across = y * k.x - x * k.y;
        s.sums.write[t][mode] = along;
        s.sums.decay[t][mode] += along;
        s.sums.theta[t][mode] += static_cast<float>(t) * across;
      },
      term<kTokens, Reach::After>(Tile<float, 1, S::kSquareStride>{s.square}, s.q.rows()));
  multiply<S::kTensor, kTokens, S::kInner>(
      [&](int t, int part, float x, float y) {
        const int mode = part / 2;
        if (mode >= modes || t >= count) return;
        const float2 w = s.w.of(t, mode);
        const float along = x * w.x + y * w.y, across = y * w.x - x * w.y;
        s.sums.write[t][mode] += along;
        s.sums.decay[t][mode] += along;
        s.sums.theta[t][mode] += static_cast<float>(count - 1 - t) * across;
        // A write decays until the end of the chunk.
        s.w.of(t, mode).x = along;
      },
      term<S::kValues>(Values{s.v}, TurnedState{s.adjoint}));
  __syncthreads();
  if (f.directs > 0) {
    for (int mode = 0; mode < modes; ++mode) {
      if (f.direct[mode]) add_direct_mode(s, tables, channel, mode);
    }
    __syncthreads();
  }

  // One warp per mode: the chunk's own decay, sums over tokens, and the gates.
  const int lane = threadIdx.x % 32;
  for (int mode = threadIdx.x / 32; mode < modes; mode += kTileWarps) {
    // The carried state h = through R(n theta) H against its adjoint G.
    const float2 turn = tables.turns_of(channel, mode)[count];
    float carried = 0, carried_across = 0;
    for (int p = lane; p < width; p += 32) {
      const float a = s.state[2 * mode * S::kStateStride + p], b = s.state[(2 * mode + 1) * S::kStateStride + p];
      const float x = turn.x * a - turn.y * b, y = turn.y * a + turn.x * b;
      const float gx = s.adjoint[2 * mode * S::kStateStride + p], gy = s.adjoint[(2 * mode + 1) * S::kStateStride + p];
      carried += gx * x + gy * y;
      carried_across += gy * x - gx * y;
    }
    carried = f.through[mode] * warp_sum(carried);
    carried_across = f.through[mode] * warp_sum(carried_across);

    const float kc = tables.modes.readout_cos(channel, mode), lag = tables.modes.zero_lag(channel, mode);
    const int t0 = 2 * lane, t1 = t0 + 1;
    const auto written = [&](int t) { return t < count ? s.w.of(t, mode).x : 0.0f; };
    const float whole = carried + warp_sum(written(t0) + written(t1));
    TableGradient sums{0, 0, 0, 0, 0};
    float after[2];
    for (int half = 0; half < 2; ++half) {
      const int t = t0 + half;
      const float at_diagonal = s.dots[t] * f.read[t][mode] * f.write[t][mode];
      sums.theta += s.sums.theta[t][mode];
      sums.readout_cos += s.sums.readout_cos[t][mode] + (1.0f - lag) * at_diagonal;
      sums.readout_sin += s.sums.readout_sin[t][mode];
      sums.zero_lag -= kc * at_diagonal;
      after[half] = s.sums.decay[t][mode];
    }
    // d lambda(t) = sum of the gradients of the accumulated decay from t on.
    float tail = after[0] + after[1];
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const float right = __shfl_down_sync(0xffffffffu, tail, offset);
      if (lane + offset < 32) tail += right;
    }
    const float d_lambda[2] = {tail - whole, tail - after[0] - whole};
    for (int half = 0; half < 2; ++half) {
      const int t = t0 + half;
      if (t >= count) continue;
      const Index gate = Index{channel} * modes + mode;
      const float read = f.read[t][mode], write = f.write[t][mode], own = s.dots[t] * kc * (1.0f - lag);
      // A gate of zero has slope zero, whatever its gradient.
      op.d_read(first + t, gate) = read > 1e-30f ? s.sums.read[t][mode] / read + own * write : 0.0f;
      op.d_write(first + t, gate) = write > 1e-30f ? s.sums.write[t][mode] / write + own * read : 0.0f;
      op.d_clock(first + t, gate) = d_lambda[half];
      sums.gamma += d_lambda[half];
    }
    sums.gamma = warp_sum(sums.gamma);
    sums.theta = warp_sum(sums.theta) + static_cast<float>(count) * carried_across;
    sums.readout_cos = warp_sum(sums.readout_cos);
    sums.readout_sin = warp_sum(sums.readout_sin);
    sums.zero_lag = warp_sum(sums.zero_lag);
    if (lane == 0) partial[(row * gridDim.x + channel) * modes + mode] = sums;
  }
}

// One warp per mode of a channel adds the chunks in a fixed order.
__global__ void add_tables(const TableGradient* partial, Index rows, Modes<const float> modes, Modes<float> gradients) {
  const int mode = blockIdx.x, channel = blockIdx.y, lane = threadIdx.x;
  const Index stride = Index{gridDim.y} * gridDim.x, at = Index{channel} * gridDim.x + mode;
  TableGradient sum{0, 0, 0, 0, 0};
  for (Index row = lane; row < rows; row += 32) {
    const TableGradient& one = partial[row * stride + at];
    sum.gamma += one.gamma;
    sum.theta += one.theta;
    sum.readout_cos += one.readout_cos;
    sum.readout_sin += one.readout_sin;
    sum.zero_lag += one.zero_lag;
  }
  const float gamma = warp_sum(sum.gamma), theta = warp_sum(sum.theta), on_cos = warp_sum(sum.readout_cos),
              on_sin = warp_sum(sum.readout_sin), lag = warp_sum(sum.zero_lag);
  if (lane != 0) return;
  gradients.decay(channel, mode) += gamma * sigmoid(modes.decay(channel, mode));
  gradients.frequency(channel, mode) += theta;
  gradients.readout_cos(channel, mode) += on_cos;
  gradients.readout_sin(channel, mode) += on_sin;
  gradients.zero_lag(channel, mode) += lag;
}

}  // namespace

template <class T>
void run(cuda::Stream& stream, const SelectiveScanBackward<T>& op) {
  if (op.sequences == 0 || op.length == 0) return;
  const Index channels = op.modes.decay.rows, modes = op.modes.decay.cols, chunks = scan_chunks(op.length);
  const Index rows = op.sequences * chunks, state = 2 * channels * modes * op.width;
  Scratch scratch(stream);
  auto* turns = scratch.take<float2>(channels * modes * (kTokens + 1));
  auto* gamma = scratch.take<float>(channels * modes);
  auto* through = scratch.take<float>(rows * channels * modes);
  auto* partial = scratch.take<TableGradient>(rows * channels * modes);
  const auto adjoints = dense(scratch.take<float>(rows * state), rows, state);
  make_scan_tables(stream, op.modes, turns, gamma);
  const ScanTables tables{turns, gamma, op.modes};
  const dim3 grid(static_cast<unsigned>(channels), static_cast<unsigned>(chunks), static_cast<unsigned>(op.sequences));
  const Index tracks = op.sequences * channels * modes * op.width;
  const auto carry = [&](Index threads) {
    launch(stream, "scan_adjoints", {blocks_for(tracks, threads), static_cast<unsigned>(threads)}, carry_adjoints,
           op.sequences, op.length, static_cast<int>(channels), static_cast<int>(modes), static_cast<int>(op.width),
           op.d_leaving, tables, through, adjoints, op.d_entering);
  };
  const auto generic = [&](Index threads) {
    with_scan_sizes<T>(modes, op.width, [&]<class S>() {
      launch(stream, "scan_adjoint_increments", {grid, kTileThreads, sizeof(IncrementShared<S>)},
             adjoint_increments<S, T>, op, tables, adjoints, through);
      carry(threads);
      launch(stream, "scan_gradients", {grid, kTileThreads, sizeof(GradientShared<S>)}, chunk_gradients<S, T>, op,
             tables, adjoints, partial);
    });
  };
  const auto run_passes = [&](Index threads) {
    if constexpr (std::is_same_v<T, BFloat16>) {
      if (fits_tensor_scan(modes, op.width)) {
        return with_tensor_width(op.width, [&]<int P>() {
          launch(stream, "scan_adjoint_increments", {grid, kTileThreads, sizeof(TensorIncrementShared<P>)},
                 tensor_adjoint_increments<P>, op, tables, adjoints, through);
          carry(threads);
          launch(stream, "scan_gradients", {grid, kTileThreads, sizeof(TensorGradientShared<P>)}, tensor_gradients<P>,
                 op, tables, adjoints, partial);
        });
      }
    }
    generic(threads);
  };
  const Written results[] = {written(op.d_v), written(op.d_write), written(op.d_read), written(op.d_clock)};
  run_passes(carry_threads(stream, "scan adjoints", tracks, op.sequences, chunks, results, run_passes));
  launch(stream, "scan_table_gradients", {dim3(static_cast<unsigned>(modes), static_cast<unsigned>(channels)), 32},
         add_tables, partial, rows, op.modes, op.d_modes);
}

template void run(cuda::Stream&, const SelectiveScanBackward<float>&);
template void run(cuda::Stream&, const SelectiveScanBackward<BFloat16>&);

}  // namespace essh
