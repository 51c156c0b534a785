#pragma once
#include <algorithm>
#include <cmath>

#include "essh/kernels/cpu/small_gemm.h"
#include "essh/kernels/cpu/vector_math.h"
#include "essh/kernels/selective_scan.h"

// Shared by the forward and the backward scan: the factors of one chunk of one channel.
//
// With l(j) = j gamma + sum of clocks up to j (j counts from 0 inside the chunk), c = half of the chunk's total decay,
// and n tokens:
//   q(j) = read(j)  e^{-(l(j)-c)} (kc cos(theta j) - ks sin(theta j),  kc sin(theta j) + ks cos(theta j))
//   k(j) = write(j) e^{l(j)-c}    (cos(theta j), sin(theta j))                       G(t,s) = q(t).k(s) for s < t
//   b(j) = read(j)  e^{-(l(j)+gamma)} (kc cos - ks sin, -(kc sin + ks cos))(theta (j+1))   reads the entering state
//   w(j) = write(j) e^{-(l(n-1)-l(j))} (cos, sin)(theta (n-1-j))                     writes to the leaving state
// Modes outside the admitted range ("direct") have q = k = 0; their terms of G are computed pair by pair, from
// differences of l alone.
namespace essh::cpu {

// cos and sin of theta * j for j = 0..kScanChunk, per mode.
template <class T>
struct RotationTable {
  T* cosine;
  T* sine;
  static constexpr Index kRow = kScanChunk + 1;

  const T* cos_of(Index mode) const { return cosine + mode * kRow; }
  const T* sin_of(Index mode) const { return sine + mode * kRow; }
};

template <class T>
RotationTable<T> make_rotations(Scratch& scratch, ThreadPool& pool, Matrix<const T> frequency) {
  const Index modes = frequency.rows * frequency.cols;
  RotationTable<T> table{scratch.take<T>(modes * RotationTable<T>::kRow),
                         scratch.take<T>(modes * RotationTable<T>::kRow)};
  pool.split(modes, [&](Index begin, Index end, int) {
    for (Index mode = begin; mode < end; ++mode) {
      const auto theta = static_cast<double>(frequency(mode / frequency.cols, mode % frequency.cols));
      const double c = std::cos(theta), s = std::sin(theta);
      double x = 1, y = 0;
      for (Index j = 0; j <= kScanChunk; ++j) {
        table.cosine[mode * table.kRow + j] = static_cast<T>(x);
        table.sine[mode * table.kRow + j] = static_cast<T>(y);
        const double turned = x * c - y * s;
        y = x * s + y * c;
        x = turned;
      }
    }
  });
  return table;
}

inline double softplus_of(double x) {
  return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
}

// One mode of a chunk.
template <class T>
struct ChunkMode {
  bool factored;
  double gamma;
  T kappa_cos, kappa_sin, zero_lag;
  const T* cosine;  // cos(theta j), j = 0..n
  const T* sine;
  double* decay;  // l(j)
  T* write;
  T* read;
  T* falling;  // e^{-(l(j)-c)}, factored modes only
  T* rising;   // e^{l(j)-c}, factored modes only
  T* entered;  // e^{-(l(j)+gamma)}
  T* leaving;  // e^{-(l(n-1)-l(j))}
  T through;   // e^{-(l(n-1)+gamma)}: decay of the entering state over the chunk
};

// All modes of one channel over one chunk. Matrices are [2 modes][kScanChunk], time fastest; g is
// [kScanChunk][kScanChunk].
template <class T>
struct ChunkFactors {
  Index n = 0;
  Index modes = 0;
  ChunkMode<T>* mode;
  T *q, *k, *b, *w;
  T* g;

  ChunkFactors(Scratch& scratch, Index mode_count) : modes(mode_count) {
    mode = scratch.take<ChunkMode<T>>(modes);
    for (T** gates : {&writes_, &reads_, &clocks_}) *gates = scratch.take<T>(modes * kScanChunk);
    for (Index i = 0; i < modes; ++i) {
      auto& m = mode[i];
      m.decay = scratch.take<double>(kScanChunk);
      m.write = writes_ + i * kScanChunk;
      m.read = reads_ + i * kScanChunk;
      for (T** row : {&m.falling, &m.rising, &m.entered, &m.leaving}) *row = scratch.take<T>(kScanChunk);
    }
    for (T** factor : {&q, &k, &b, &w}) *factor = scratch.take<T>(2 * modes * kScanChunk);
    g = scratch.take<T>(kScanChunk * kScanChunk);
  }

  T* row(T* factor, Index mode_index, Index part) const { return factor + (2 * mode_index + part) * kScanChunk; }

  // Computes all factors for tokens [first, first + count) of one channel.
  template <class Op>
  void compute(const Op& op, const RotationTable<T>& rotations, Index first, Index count, Index channel) {
    n = count;
    gather(op, first, channel);
    for (Index i = 0; i < modes; ++i) {
      auto& m = mode[i];
      m.gamma = softplus_of(static_cast<double>(op.modes.decay(channel, i)));
      m.kappa_cos = op.modes.readout_cos(channel, i);
      m.kappa_sin = op.modes.readout_sin(channel, i);
      m.zero_lag = op.modes.zero_lag(channel, i);
      m.cosine = rotations.cos_of(channel * modes + i);
      m.sine = rotations.sin_of(channel * modes + i);
      m.factored = static_cast<double>(kScanChunk - 1) * m.gamma + m.decay[n - 1] <= op.factor_range;
      for (Index j = 0; j < n; ++j) m.decay[j] += static_cast<double>(j) * m.gamma;
      exponentials(m);
      factors(m, i);
    }
    interactions();
  }

 private:
  // Transposes the gates to mode-major order and accumulates the clocks over time.
  template <class Op>
  void gather(const Op& op, Index first, Index channel) {
    const Index column = channel * modes;
    transpose(n, modes, op.write.row(first) + column, op.write.stride, writes_, kScanChunk);
    transpose(n, modes, op.read.row(first) + column, op.read.stride, reads_, kScanChunk);
    transpose(n, modes, op.clock.row(first) + column, op.clock.stride, clocks_, kScanChunk);
    for (Index i = 0; i < modes; ++i) {
      double sum = 0;
      for (Index j = 0; j < n; ++j) mode[i].decay[j] = sum += static_cast<double>(clocks_[i * kScanChunk + j]);
    }
  }

  void exponentials(ChunkMode<T>& m) {
    double argument[kScanChunk];
    const double last = m.decay[n - 1];
    m.through = static_cast<T>(std::exp(-(last + m.gamma)));
    if (m.factored) {
      const double centre = last / 2;
      for (Index j = 0; j < n; ++j) argument[j] = centre - m.decay[j];
      exp_wide(n, argument, m.falling);
      const auto to_entered = static_cast<T>(std::exp(-(centre + m.gamma))),
                 to_leaving = static_cast<T>(std::exp(centre - last));
      for (Index j = 0; j < n; ++j) m.rising[j] = T(1) / m.falling[j];
      for (Index j = 0; j < n; ++j) m.entered[j] = m.falling[j] * to_entered;
      for (Index j = 0; j < n; ++j) m.leaving[j] = m.rising[j] * to_leaving;
    } else {
      for (Index j = 0; j < n; ++j) argument[j] = -(m.decay[j] + m.gamma);
      exp_wide(n, argument, m.entered);
      for (Index j = 0; j < n; ++j) argument[j] = m.decay[j] - last;
      exp_wide(n, argument, m.leaving);
    }
  }

  void factors(const ChunkMode<T>& m, Index i) {
    const T *c = m.cosine, *s = m.sine;
    const T kc = m.kappa_cos, ks = m.kappa_sin;
    T scale[kScanChunk];
    // out = scale (x c + y s)
    const auto turned = [&](T* out, T x, const T* cosine, T y, const T* sine) {
      for (Index j = 0; j < n; ++j) out[j] = scale[j] * (x * cosine[j] + y * sine[j]);
    };
    if (m.factored) {
      for (Index j = 0; j < n; ++j) scale[j] = m.read[j] * m.falling[j];
      turned(row(q, i, 0), kc, c, -ks, s);
      turned(row(q, i, 1), ks, c, kc, s);
      for (Index j = 0; j < n; ++j) scale[j] = m.write[j] * m.rising[j];
      turned(row(k, i, 0), T(1), c, T(0), s);
      turned(row(k, i, 1), T(0), c, T(1), s);
    } else {
      for (T* factor : {q, k}) std::fill_n(row(factor, i, 0), 2 * kScanChunk, T(0));
    }
    for (Index j = 0; j < n; ++j) scale[j] = m.read[j] * m.entered[j];
    turned(row(b, i, 0), kc, c + 1, -ks, s + 1);
    turned(row(b, i, 1), -ks, c + 1, -kc, s + 1);
    T *w1 = row(w, i, 0), *w2 = row(w, i, 1);
    for (Index j = 0; j < n; ++j) w1[j] = m.write[j] * m.leaving[j] * c[n - 1 - j];
    for (Index j = 0; j < n; ++j) w2[j] = m.write[j] * m.leaving[j] * s[n - 1 - j];
  }

  // g: strictly lower triangle q.k plus the direct modes' pairs, diagonal with the zero-lag correction, zeros above it
  // as far as products of Shape::Lower read.
  void interactions() {
    for (Index t = 0; t < n; t += kRowBlock) {
      const Index rows = std::min(kRowBlock, n - t);
      set_product<T>(rows, t + rows, 2 * modes, {q + t, 1, kScanChunk}, k, kScanChunk, g + t * kScanChunk, kScanChunk);
    }
    T diagonal[kScanChunk] = {};
    for (Index i = 0; i < modes; ++i) {
      const auto& m = mode[i];
      const T coefficient = (T(1) - m.zero_lag) * m.kappa_cos;
      for (Index t = 0; t < n; ++t) diagonal[t] += coefficient * m.read[t] * m.write[t];
      if (m.factored) continue;
      for_each_pair(m, [&](Index t, Index s, T base) {
        g[t * kScanChunk + s] +=
            m.read[t] * m.write[s] * base * (m.kappa_cos * m.cosine[t - s] - m.kappa_sin * m.sine[t - s]);
      });
    }
    for (Index t = 0; t < n; ++t) g[t * kScanChunk + t] = diagonal[t];
    clear_above_diagonal(g);
  }

  T *writes_, *reads_, *clocks_;  // [modes][time]

 public:
  // Row blocks of lower triangular products.
  static constexpr Index kRowBlock = detail::kTileRows;

  // Zeros above the diagonal of a [kScanChunk][kScanChunk] matrix, within its row blocks.
  void clear_above_diagonal(T* square) const {
    for (Index t = 0; t < n; ++t) {
      for (Index s = t + 1; s < std::min(n, (t / kRowBlock + 1) * kRowBlock); ++s) square[t * kScanChunk + s] = T(0);
    }
  }

  // Decay beyond which a token's contribution is far below the rounding of T.
  static constexpr double kForgotten = std::is_same_v<T, float> ? 40 : 745;

  // Calls body(t, s, e^{-(l(t)-l(s))}) for s < t of a direct mode, back to decay kForgotten.
  template <class Body>
  void for_each_pair(const ChunkMode<T>& m, const Body& body) const {
    double argument[kScanChunk];
    T base[kScanChunk];
    Index first = 0;
    for (Index t = 1; t < n; ++t) {
      while (first < t && m.decay[t] - m.decay[first] > kForgotten) ++first;
      for (Index s = first; s < t; ++s) argument[s - first] = m.decay[s] - m.decay[t];
      exp_wide(t - first, argument, base);
      for (Index s = first; s < t; ++s) body(t, s, base[s - first]);
    }
  }
};

}  // namespace essh::cpu
