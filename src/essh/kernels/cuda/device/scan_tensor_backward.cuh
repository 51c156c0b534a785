#pragma once
#include "essh/kernels/cuda/device/scan_tensor_forward.cuh"

namespace essh::cuda {

// Gradients of one channel's modal tables from one chunk, per mode.
struct TableGradient {
  float gamma, theta, readout_cos, readout_sin, zero_lag;
};

template <int P>
__global__ void __launch_bounds__(kTileThreads)
    tensor_adjoint_increments(SelectiveScanBackward<BFloat16> op, ScanTables tables, Matrix<float> increments,
                              float* through) {
  extern __shared__ __align__(16) unsigned char raw[];
  auto& s = *reinterpret_cast<TensorIncrementShared<P>*>(raw);
  const ChunkPlace at(op);
  const TokenMode mine;
  load_values<ScanSizes<BFloat16, 16, P>>(s.values.at, op.d_z, at.first, at.count, at.column, at.width);
  float read[2][2], decay[2][2];
  load_gate(read, op.read, at);
  const float2 whole = load_decay(decay, op.clock, tables, at, s.lines);
  const ModePair modes(tables, at);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int t = mine.first + j;
    float q[2][2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 turn = modes.turns[i][t];
      const float reading = read[j][i] * __expf(-decay[j][i]);
      q[0][i] = reading * (modes.readout_cos[i] * turn.x - modes.readout_sin[i] * turn.y);
      q[1][i] = reading * (modes.readout_cos[i] * turn.y + modes.readout_sin[i] * turn.x);
    }
    s.factor.set(t, mine.mode, q[0][0], q[0][1]);
    s.factor.set(t, 8 + mine.mode, q[1][0], q[1][1]);
  }
  if (mine.first == 0) {
    float* place = through + (at.row * gridDim.x + at.channel) * at.modes + mine.mode;
    if (mine.mode < at.modes) place[0] = __expf(-whole.x);
    if (mine.mode + 1 < at.modes) place[1] = __expf(-whole.y);
  }
  __syncthreads();
  float* to = increments.row(at.row) + Index{at.channel} * 2 * at.modes * at.width;
  state_product<P>(s, [&](int m, int p, float2 x, float2 y) {
    if (m >= at.modes) return;
    const float2 turn = tables.turns_of(at.channel, m)[1];
    store_pair(to + 2 * m * at.width, p, at.width, {turn.x * x.x - turn.y * y.x, turn.x * x.y - turn.y * y.y});
    store_pair(to + (2 * m + 1) * at.width, p, at.width, {-turn.y * x.x - turn.x * y.x, -turn.y * x.y - turn.x * y.y});
  });
}

template <int P>
struct TensorGradientShared {
  Halves<kTokens, kPairs> q, k;
  Halves<kPairs, P> state, adjoint;
  Half<kTokens, P> values, d_z;
  DirectModes direct;
  float unit[kTokens][kTensorModes];     // read times e^{centre - decay}
  float d_decay[kTokens][kTensorModes];  // gradient of the accumulated decay
  float diagonal[kTokens], dots[kTokens];
  float lines[kTileWarps][kTensorModes];
  TableGradient sums[kTileWarps][kTensorModes];
  float written[kTileWarps][kTensorModes];
  float kept_q[kTensorModes], kept_k[kTensorModes];
  float carried[kTensorModes], carried_across[kTensorModes];
  // Of direct modes, over pairs of tokens.
  float pair_reads[kTokens][kTensorModes], pair_writes[kTokens][kTensorModes];
  TableGradient pair_sums[kTileWarps][kTensorModes];
};

// Loads the entering state H as load_turned_state does; the adjoint G of the leaving state in k's frame, J R((n-1)
// theta)^T G e^{-(whole - centre)}; and the products of G with the carried state, <G, R(n theta) H> and the same
// rotated by 90 degrees. Two modes per warp.
template <int P>
__device__ void load_states(TensorGradientShared<P>& s, const float* state, const float* adjoint,
                            const ScanTables& tables, const ChunkPlace& at) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int mode = warp; mode < kTensorModes; mode += kTileWarps) {
    const bool inside = mode < at.modes;
    const float2* turns = tables.turns_of(at.channel, inside ? mode : 0);
    const float2 one = turns[1], last = turns[at.count - 1], all = turns[at.count];
    float carried = 0, across = 0;
    for (int pair = lane; pair < P / 2; pair += 32) {
      const int p = 2 * pair;
      float2 a = {0, 0}, b = {0, 0}, gx = {0, 0}, gy = {0, 0};
      if (inside && p < at.width) {
        const int upper = 2 * mode * at.width + p, lower = upper + at.width;
        const bool both = p + 1 < at.width;
        a = {state[upper], both ? state[upper + 1] : 0.0f};
        b = {state[lower], both ? state[lower + 1] : 0.0f};
        gx = {adjoint[upper], both ? adjoint[upper + 1] : 0.0f};
        gy = {adjoint[lower], both ? adjoint[lower + 1] : 0.0f};
      }
      const float q = s.kept_q[mode], k = s.kept_k[mode];
      s.state.set(mode, p, q * (one.x * a.x - one.y * b.x), q * (one.x * a.y - one.y * b.y));
      s.state.set(8 + mode, p, -q * (one.y * a.x + one.x * b.x), -q * (one.y * a.y + one.x * b.y));
      s.adjoint.set(mode, p, k * (last.x * gx.x + last.y * gy.x), k * (last.x * gx.y + last.y * gy.y));
      s.adjoint.set(8 + mode, p, k * (last.y * gx.x - last.x * gy.x), k * (last.y * gx.y - last.x * gy.y));
      const float2 x = {all.x * a.x - all.y * b.x, all.x * a.y - all.y * b.y},
                   y = {all.y * a.x + all.x * b.x, all.y * a.y + all.x * b.y};
      carried += gx.x * x.x + gy.x * y.x + gx.y * x.y + gy.y * y.y;
      across += gy.x * x.x - gx.x * y.x + gy.y * x.y - gx.y * y.y;
    }
    carried = warp_sum(carried);
    across = warp_sum(across);
    if (lane == 0) {
      s.carried[mode] = carried;
      s.carried_across[mode] = across;
    }
  }
}

__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Gradients of direct modes from a block of d_g whose rows are queries.
template <int P>
__device__ void add_query_pairs(TensorGradientShared<P>& s, const ScanTables& tables, const ChunkPlace& at,
                                float (&left)[4], float (&right)[4], int row, int column) {
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
  for_direct_modes(s.direct, tables, at, row, column + 15, [&](int mode, float kc, float ks, const float2* turns) {
    float reads[2] = {0, 0};
    TableGradient sums = {};
    each(left, right, row, column, [&](int t, int other, float& d) {
      if (other >= t) return;
      const float weighted = d * s.direct.weight(mode, t, other);
      const float2 turn = turns[t - other];
      reads[t - row >= 8] += weighted * (kc * turn.x - ks * turn.y);
      sums.theta += weighted * (-kc * turn.y - ks * turn.x) * static_cast<float>(t - other);
      sums.readout_cos += weighted * turn.x;
      sums.readout_sin -= weighted * turn.y;
    });
    for (int half = 0; half < 2; ++half) {
      reads[half] = quad_sum(reads[half]);
      if (threadIdx.x % 4 == 0) s.pair_reads[row + g + half * 8][mode] += reads[half];
    }
    const float theta = warp_sum(sums.theta), on_cos = warp_sum(sums.readout_cos), on_sin = warp_sum(sums.readout_sin);
    if (threadIdx.x % 32 == 0) {
      s.pair_sums[warp][mode].theta += theta;
      s.pair_sums[warp][mode].readout_cos += on_cos;
      s.pair_sums[warp][mode].readout_sin += on_sin;
    }
  });
}
// The same for a block whose rows are keys.
template <int P>
__device__ void add_key_pairs(TensorGradientShared<P>& s, const ScanTables& tables, const ChunkPlace& at,
                              float (&left)[4], float (&right)[4], int row, int column) {
  const int g = threadIdx.x % 32 / 4;
  for_direct_modes(s.direct, tables, at, column, row + 15, [&](int mode, float kc, float ks, const float2* turns) {
    float writes[2] = {0, 0};
    each(left, right, row, column, [&](int other, int t, float& d) {
      if (other >= t) return;
      const float2 turn = turns[t - other];
      writes[other - row >= 8] += d * s.direct.weight(mode, t, other) * (kc * turn.x - ks * turn.y);
    });
    for (int half = 0; half < 2; ++half) {
      writes[half] = quad_sum(writes[half]);
      if (threadIdx.x % 4 == 0) s.pair_writes[row + g + half * 8][mode] += writes[half];
    }
  });
}

template <int P>
__global__ void __launch_bounds__(kTileThreads) tensor_gradients(SelectiveScanBackward<BFloat16> op, ScanTables tables,
                                                                 Matrix<const float> adjoints, TableGradient* partial) {
  extern __shared__ __align__(16) unsigned char raw[];
  auto& s = *reinterpret_cast<TensorGradientShared<P>*>(raw);
  const ChunkPlace at(op);
  const TokenMode mine;
  load_values<ScanSizes<BFloat16, 16, P>>(s.values.at, op.v, at.first, at.count, at.column, at.width);
  load_values<ScanSizes<BFloat16, 16, P>>(s.d_z.at, op.d_z, at.first, at.count, at.column, at.width);
  float write[2][2], read[2][2], decay[2][2];
  load_gate(write, op.write, at);
  load_gate(read, op.read, at);
  const float2 whole = load_decay(decay, op.clock, tables, at, s.lines);
  const auto centre = make_factors(s, tables, at, admitted(op.factor_range), read, write, decay, whole);
  keep_for_pairs(s.direct, centre, read, write, decay);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) s.unit[mine.first + j][mine.mode + i] = read[j][i] * __expf(centre.q[i] - decay[j][i]);
    if (mine.first == 0) {
      s.kept_q[mine.mode + i] = __expf(-centre.q[i]);
      s.kept_k[mine.mode + i] = __expf(centre.k[i] - (i ? whole.y : whole.x));
    }
  }
  const bool directs = __syncthreads_or(centre.direct[0] || centre.direct[1]);
  if (directs) {
    for (int i = threadIdx.x; i < kTokens * kTensorModes; i += kTileThreads)
      s.pair_reads[i / kTensorModes][i % kTensorModes] = s.pair_writes[i / kTensorModes][i % kTensorModes] = 0;
    if (threadIdx.x < kTileWarps * kTensorModes)
      s.pair_sums[threadIdx.x / kTensorModes][threadIdx.x % kTensorModes] = {};
  }
  const Index state_column = Index{at.channel} * 2 * at.modes * at.width;
  load_states<P>(s, op.boundary.row(at.row) + state_column, adjoints.row(at.row) + state_column, tables, at);
  __syncthreads();

  const int warp = threadIdx.x / 32, row = warp * 16;
  // As queries: the gradient of q through g and through the entering state.
  float d_q[2][4] = {}, d_q_state[2][4] = {};
  {
    Word d_z[P / 16][4];
#pragma unroll
    for (int p = 0; p < P; p += 16) s.d_z.left(d_z[p / 16], row, p);
#pragma unroll 1
    for (int column = 0; column <= row; column += 16) {
      float left[4] = {}, right[4] = {};
#pragma unroll
      for (int p = 0; p < P; p += 16) {
        Word v[4];
        s.values.across(v, column, p);
        add(left, right, d_z[p / 16], v);
      }
      if (column == row) {
        each(left, right, row, column, [&](int t, int other, float& d) {
          if (other == t) s.dots[t] = d;
          if (other >= t) d = 0;
        });
      }
      if (directs) add_query_pairs<P>(s, tables, at, left, right, row, column);
      const SplitLeft d_g(left, right);
      Word high[4], low[4];
      s.k.high.down(high, column, 0);
      s.k.low.down(low, column, 0);
      add(d_q[0], d_q[1], d_g, high, low);
    }
#pragma unroll
    for (int p = 0; p < P; p += 16) {
      Word high[4], low[4];
      s.state.high.across(high, 0, p);
      s.state.low.across(low, 0, p);
      add(d_q_state[0], d_q_state[1], d_z[p / 16], low);
      add(d_q_state[0], d_q_state[1], d_z[p / 16], high);
    }
  }
  // As keys: the gradients of k and v.
  float d_k[2][4] = {}, d_k_state[2][4] = {};
  {
    const SplitLeft k(s.k, row, 0);
    float d_v[P / 8][4] = {};
#pragma unroll 1
    for (int column = row; column < kTokens; column += 16) {
      Word q_high[4], q_low[4];
      {
        float left[4] = {}, right[4] = {};
        s.q.high.across(q_high, column, 0);
        s.q.low.across(q_low, column, 0);
        add(left, right, k, q_high, q_low);
        if (directs) {
          for_direct_modes(
              s.direct, tables, at, column, row + 15, [&](int mode, float kc, float ks, const float2* turns) {
                each(left, right, row, column, [&](int other, int t, float& g) {
                  if (other < t)
                    g += s.direct.weight(mode, t, other) * (kc * turns[t - other].x - ks * turns[t - other].y);
                });
              });
        }
        if (column == row) {
          each(left, right, row, column, [&](int other, int t, float& g) {
            g = other < t ? g : other == t ? s.diagonal[t] : 0.0f;
          });
        }
        const SplitLeft g(left, right);
#pragma unroll
        for (int p = 0; p < P; p += 16) {
          Word d_z[4];
          s.d_z.down(d_z, column, p);
          add(d_v[p / 8], d_v[p / 8 + 1], g, d_z);
        }
      }
      float left[4] = {}, right[4] = {};
#pragma unroll
      for (int p = 0; p < P; p += 16) {
        Word v[4], d_z[4];
        s.values.left(v, row, p);
        s.d_z.across(d_z, column, p);
        add(left, right, v, d_z);
      }
      if (column == row) {
        each(left, right, row, column, [&](int other, int t, float& d) {
          if (other >= t) d = 0;
        });
      }
      if (directs) add_key_pairs<P>(s, tables, at, left, right, row, column);
      const SplitLeft d_g(left, right);
      s.q.high.down(q_high, column, 0);
      s.q.low.down(q_low, column, 0);
      add(d_k[0], d_k[1], d_g, q_high, q_low);
    }
#pragma unroll
    for (int p = 0; p < P; p += 16) {
      Word high[4], low[4], v[4];
      s.adjoint.high.down(high, 0, p);
      s.adjoint.low.down(low, 0, p);
      add(d_v[p / 8], d_v[p / 8 + 1], k, high, low);
      s.adjoint.high.across(high, 0, p);
      s.adjoint.low.across(low, 0, p);
      s.values.left(v, row, p);
      add(d_k_state[0], d_k_state[1], v, low);
      add(d_k_state[0], d_k_state[1], v, high);
    }
    store_strip<P>(op.d_v, at, d_v);
  }
  __syncthreads();  // dots

  // Every lane owns two tokens of two modes: from factors to gates, decay, frequency and readout.
  const int lane = threadIdx.x % 32, g = lane / 4;
  TableGradient sums[2] = {};
  float written[2] = {0, 0};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int t = row + g + half * 8, pair = lane % 4 * 2;
    const float2 q0 = s.q.pair(t, pair), q1 = s.q.pair(t, 8 + pair), k0 = s.k.pair(t, pair), k1 = s.k.pair(t, 8 + pair);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int mode = pair + i, at_sum = 2 * half + i;
      if (mode >= at.modes) continue;
      const float qx = i ? q0.y : q0.x, qy = i ? q1.y : q1.x, kx = i ? k0.y : k0.x, ky = i ? k1.y : k1.x;
      const float read_t = s.direct.read[t][mode], write_t = s.direct.write[t][mode];
      const float near_x = d_q[0][at_sum], near_y = d_q[1][at_sum], far_x = d_q_state[0][at_sum],
                  far_y = d_q_state[1][at_sum];
      const float x = near_x + far_x, y = near_y + far_y;
      const float state_along = d_k_state[0][at_sum] * kx + d_k_state[1][at_sum] * ky;
      float reads = x * qx + y * qy, writes = d_k[0][at_sum] * kx + d_k[1][at_sum] * ky + state_along;
      float d_decay = writes - reads;
      const float position = static_cast<float>(t);
      auto& sum = sums[i];
      sum.theta +=
          position * (near_y * qx - near_x * qy) + (position + 1) * (far_y * qx - far_x * qy) +
          position * (d_k[1][at_sum] * kx - d_k[0][at_sum] * ky) +
          (position - static_cast<float>(at.count - 1)) * (d_k_state[1][at_sum] * kx - d_k_state[0][at_sum] * ky);
      const float2 turn = tables.turns_of(at.channel, mode)[t];
      const float unit = s.unit[t][mode], at_diagonal = s.dots[t] * read_t * write_t;
      const float kc = tables.modes.readout_cos(at.channel, mode), lag = tables.modes.zero_lag(at.channel, mode);
      sum.readout_cos += unit * (x * turn.x + y * turn.y) + (1.0f - lag) * at_diagonal;
      sum.readout_sin += unit * (y * turn.x - x * turn.y);
      sum.zero_lag -= kc * at_diagonal;
      written[i] += state_along;
      if (directs && s.direct.direct[mode]) {
        reads += s.pair_reads[t][mode];
        writes += s.pair_writes[t][mode];
        d_decay += s.pair_writes[t][mode] - s.pair_reads[t][mode];
      }
      s.d_decay[t][mode] = d_decay;
      if (t >= at.count) continue;
      const Index gate = Index{at.channel} * at.modes + mode;
      const float own = s.dots[t] * kc * (1.0f - lag);
      // A gate of zero has slope zero, whatever its gradient.
      op.d_read(at.first + t, gate) = read_t > 1e-30f ? reads / read_t + own * write_t : 0.0f;
      op.d_write(at.first + t, gate) = write_t > 1e-30f ? writes / write_t + own * read_t : 0.0f;
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float values[5] = {sums[i].theta, sums[i].readout_cos, sums[i].readout_sin, sums[i].zero_lag, written[i]};
#pragma unroll
    for (int offset = 4; offset < 32; offset *= 2) {
#pragma unroll
      for (float& value : values) value += __shfl_xor_sync(0xffffffffu, value, offset);
    }
    if (g == 0) {
      const int mode = lane % 4 * 2 + i;
      if (directs && s.direct.direct[mode]) {
        values[0] += s.pair_sums[warp][mode].theta;
        values[1] += s.pair_sums[warp][mode].readout_cos;
        values[2] += s.pair_sums[warp][mode].readout_sin;
      }
      s.sums[warp][mode] = {0, values[0], values[1], values[2], values[3]};
      s.written[warp][mode] = values[4];
    }
  }
  __syncthreads();

  // d lambda(t) = sum of the gradients of the accumulated decay from t on, minus the decay to the end of the chunk.
  float d_lambda[2][2], to_end[2], gamma[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int mode = mine.mode + i;
    to_end[i] = __expf(-(i ? whole.y : whole.x)) * s.carried[mode];
#pragma unroll
    for (int w = 0; w < kTileWarps; ++w) to_end[i] += s.written[w][mode];
#pragma unroll
    for (int j = 0; j < 2; ++j) d_lambda[j][i] = mode < at.modes ? s.d_decay[mine.first + j][mode] : 0.0f;
  }
  accumulate_back(d_lambda, s.lines);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int t = mine.first + j;
      if (t >= at.count || mine.mode + i >= at.modes) continue;
      op.d_clock(at.first + t, Index{at.channel} * at.modes + mine.mode + i) = d_lambda[j][i] - to_end[i];
      gamma[i] += d_lambda[j][i] - to_end[i];
    }
#pragma unroll
    for (int offset = 4; offset < 32; offset *= 2) gamma[i] += __shfl_xor_sync(0xffffffffu, gamma[i], offset);
  }
  __syncthreads();  // all threads have read `lines`
  if (lane < 4) {
    s.lines[warp][mine.mode] = gamma[0];
    s.lines[warp][mine.mode + 1] = gamma[1];
  }
  __syncthreads();
  const int mode = threadIdx.x;
  if (mode >= at.modes) return;
  TableGradient total = {};
  for (int w = 0; w < kTileWarps; ++w) {
    const auto& one = s.sums[w][mode];
    total.gamma += s.lines[w][mode];
    total.theta += one.theta;
    total.readout_cos += one.readout_cos;
    total.readout_sin += one.readout_sin;
    total.zero_lag += one.zero_lag;
  }
  const float through = __expf(-s.direct.decay[kTokens - 1][mode]);
  total.theta += static_cast<float>(at.count) * through * s.carried_across[mode];
  partial[(at.row * gridDim.x + at.channel) * at.modes + mode] = total;
}

}  // namespace essh::cuda
