#include "essh/kernels/selective_scan.h"

#include <algorithm>
#include <cmath>

#include "essh/kernels/cpu/scan_chunk.h"

namespace essh {
namespace {

using cpu::ChunkFactors;
using cpu::RotationTable;
using cpu::Scratch;

// state = through R(theta n) state, for every mode of one channel; state is [2 modes][width].
template <class T>
void carry_state(const ChunkFactors<T>& f, T* state, Index width) {
  for (Index i = 0; i < f.modes; ++i) {
    const auto& m = f.mode[i];
    const T c = m.through * m.cosine[f.n], s = m.through * m.sine[f.n];
    T *first = state + 2 * i * width, *second = first + width;
    for (Index p = 0; p < width; ++p) {
      const T x = first[p], y = second[p];
      first[p] = c * x - s * y;
      second[p] = s * x + c * y;
    }
  }
}

template <class T>
void scan_forward(Scratch& scratch, const SelectiveScanForward<T>& op, const RotationTable<T>& rotations,
                  Index sequence, Index channel) {
  const Index modes = op.modes.decay.cols, width = op.width, size = 2 * modes * width, chunks = scan_chunks(op.length);
  ChunkFactors<T> f(scratch, modes);
  T* state = scratch.take<T>(size);
  if (op.entering.empty())
    std::fill_n(state, size, T(0));
  else
    std::copy_n(op.entering.row(sequence) + channel * size, size, state);
  for (Index chunk = 0; chunk < chunks; ++chunk) {
    const Index first = sequence * op.length + chunk * kScanChunk;
    const Index n = std::min(kScanChunk, op.length - chunk * kScanChunk);
    if (!op.boundary.empty()) std::copy_n(state, size, op.boundary.row(sequence * chunks + chunk) + channel * size);
    f.compute(op, rotations, first, n, channel);
    const T* v = op.v.row(first) + channel * width;
    T* z = op.z.row(first) + channel * width;
    for (Index j = 0; j < n; ++j) std::fill_n(z + j * op.z.stride, width, T(0));
    cpu::add_product<T>(n, width, n, {f.g, kScanChunk, 1}, v, op.v.stride, z, op.z.stride, cpu::Shape::Lower);
    cpu::add_product<T>(n, width, 2 * modes, {f.b, 1, kScanChunk}, state, width, z, op.z.stride);
    carry_state(f, state, width);
    cpu::add_product<T>(2 * modes, width, n, {f.w, kScanChunk, 1}, v, op.v.stride, state, width);
  }
  if (!op.leaving.empty()) std::copy_n(state, size, op.leaving.row(sequence) + channel * size);
}

// Sums over one sequence of the gradients of one channel's modal tables, mode by mode.
struct ModeSums {
  double gamma = 0, theta = 0, kappa_cos = 0, kappa_sin = 0, zero_lag = 0;
};

// Buffers of the backward pass of one chunk; [time][2 modes] unless said otherwise.
template <class T>
struct ChunkGradients {
  T* s;                      // [time][time]: g V^T, strictly lower, and its diagonal
  T* v_transposed;           // [width][time]
  T* state_transposed;       // [width][2 modes]
  T* rows;                   // a factor turned to [time][2 modes]
  T* turned;                 // a gradient turned to [2 modes][time]
  T *d_q, *d_k, *d_b, *d_w;  // [2 modes][time]
  T* diagonal;               // g.v at each token
  double* d_decay;           // gradient of l(j)

  ChunkGradients(Scratch& scratch, Index modes, Index width) {
    s = scratch.take<T>(kScanChunk * kScanChunk);
    v_transposed = scratch.take<T>(width * kScanChunk);
    state_transposed = scratch.take<T>(width * 2 * modes);
    for (T** buffer : {&rows, &turned, &d_q, &d_k, &d_b, &d_w}) *buffer = scratch.take<T>(2 * modes * kScanChunk);
    diagonal = scratch.take<T>(kScanChunk);
    d_decay = scratch.take<double>(kScanChunk);
  }
};

template <class T>
class ScanBackward {
 public:
  ScanBackward(Scratch& scratch, const SelectiveScanBackward<T>& op, const RotationTable<T>& rotations, Index sequence,
               Index channel)
      : op_(op),
        rotations_(rotations),
        sequence_(sequence),
        channel_(channel),
        modes_(op.modes.decay.cols),
        width_(op.width),
        size_(2 * modes_ * width_),
        f_(scratch, modes_),
        g_(scratch, modes_, width_),
        adjoint_(scratch.take<T>(size_)) {}

  void run(ModeSums* sums) {
    if (op_.d_leaving.empty())
      std::fill_n(adjoint_, size_, T(0));
    else
      std::copy_n(op_.d_leaving.row(sequence_) + channel_ * size_, size_, adjoint_);
    const Index chunks = scan_chunks(op_.length);
    for (Index chunk = chunks - 1; chunk >= 0; --chunk) {
      const Index first = sequence_ * op_.length + chunk * kScanChunk;
      const Index n = std::min(kScanChunk, op_.length - chunk * kScanChunk);
      f_.compute(op_, rotations_, first, n, channel_);
      state_ = op_.boundary.row(sequence_ * chunks + chunk) + channel_ * size_;
      factor_gradients(first);
      for (Index i = 0; i < modes_; ++i) mode_gradients(i, first, sums[i]);
      carry_adjoint(first);
    }
    if (!op_.d_entering.empty()) std::copy_n(adjoint_, size_, op_.d_entering.row(sequence_) + channel_ * size_);
  }

 private:
  // Gradients of values and of the factors q, k, b, w by matrix products.
  void factor_gradients(Index first) {
    const Index n = f_.n, inner = 2 * modes_;
    const T* v = op_.v.row(first) + channel_ * width_;
    const T* d_z = op_.d_z.row(first) + channel_ * width_;
    T* d_v = op_.d_v.row(first) + channel_ * width_;
    for (Index j = 0; j < n; ++j) std::fill_n(d_v + j * op_.d_v.stride, width_, T(0));
    cpu::add_product<T>(n, width_, n, {f_.g, 1, kScanChunk}, d_z, op_.d_z.stride, d_v, op_.d_v.stride,
                        cpu::Shape::Upper);
    cpu::add_product<T>(n, width_, inner, {f_.w, 1, kScanChunk}, adjoint_, width_, d_v, op_.d_v.stride);

    cpu::transpose(n, width_, v, op_.v.stride, g_.v_transposed, kScanChunk);
    for (Index t = 0; t < n; ++t) std::fill_n(g_.s + t * kScanChunk, n, T(0));
    for (Index t = 0; t < n; t += 8) {
      const Index rows = std::min<Index>(8, n - t);
      cpu::add_product<T>(rows, t + rows, width_, {d_z + t * op_.d_z.stride, op_.d_z.stride, 1}, g_.v_transposed,
                          kScanChunk, g_.s + t * kScanChunk, kScanChunk);
    }
    for (Index t = 0; t < n; ++t) {
      g_.diagonal[t] = g_.s[t * kScanChunk + t];
      std::fill(g_.s + t * kScanChunk + t, g_.s + t * kScanChunk + n, T(0));
    }

    const auto product = [&](cpu::Strided<T> a, Index depth, const T* b, cpu::Shape shape, T* out) {
      std::fill_n(g_.turned, n * inner, T(0));
      cpu::add_product<T>(n, inner, depth, a, b, inner, g_.turned, inner, shape);
      cpu::transpose(n, inner, g_.turned, inner, out, kScanChunk);
    };
    cpu::transpose(inner, n, f_.k, kScanChunk, g_.rows, inner);
    product({g_.s, kScanChunk, 1}, n, g_.rows, cpu::Shape::Lower, g_.d_q);
    cpu::transpose(inner, n, f_.q, kScanChunk, g_.rows, inner);
    product({g_.s, 1, kScanChunk}, n, g_.rows, cpu::Shape::Upper, g_.d_k);
    cpu::transpose(inner, width_, state_, width_, g_.state_transposed, inner);
    product({d_z, op_.d_z.stride, 1}, width_, g_.state_transposed, cpu::Shape::Full, g_.d_b);
    cpu::transpose(inner, width_, adjoint_, width_, g_.state_transposed, inner);
    product({v, op_.v.stride, 1}, width_, g_.state_transposed, cpu::Shape::Full, g_.d_w);
  }

  // From factor gradients to those of the gates, the clock and the modal tables. Every factor is a gate times e^{+-l}
  // times a rotation, so each contributes its inner product with itself to the gate and to l, and its turned inner
  // product to theta.
  void mode_gradients(Index i, Index first, ModeSums& sums) {
    const Index n = f_.n, column = channel_ * modes_ + i;
    const auto& m = f_.mode[i];
    const T *c = m.cosine, *s = m.sine;
    double d_gamma = 0, d_theta = 0, d_cos = 0, d_sin = 0, d_lag = 0;
    std::fill_n(g_.d_decay, n, 0.0);
    T* d_write = g_.turned;
    T* d_read = g_.turned + kScanChunk;
    std::fill_n(d_write, n, T(0));
    std::fill_n(d_read, n, T(0));

    const auto row = [&](T* factor, Index part) { return f_.row(factor, i, part); };
    if (m.factored) {
      const T *q1 = row(f_.q, 0), *q2 = row(f_.q, 1), *k1 = row(f_.k, 0), *k2 = row(f_.k, 1);
      const T *dq1 = row(g_.d_q, 0), *dq2 = row(g_.d_q, 1), *dk1 = row(g_.d_k, 0), *dk2 = row(g_.d_k, 1);
      for (Index j = 0; j < n; ++j) {
        const T along_cos = dq1[j] * c[j] + dq2[j] * s[j], along_sin = dq2[j] * c[j] - dq1[j] * s[j];
        const T target = m.read[j] * m.falling[j];
        d_cos += static_cast<double>(target * along_cos);
        d_sin += static_cast<double>(target * along_sin);
        d_read[j] += m.falling[j] * (m.kappa_cos * along_cos + m.kappa_sin * along_sin);
        d_write[j] += (dk1[j] * c[j] + dk2[j] * s[j]) / m.falling[j];
        g_.d_decay[j] +=
            static_cast<double>(dk1[j] * k1[j] + dk2[j] * k2[j]) - static_cast<double>(dq1[j] * q1[j] + dq2[j] * q2[j]);
        d_theta += static_cast<double>(j) * (static_cast<double>(dq2[j] * q1[j] - dq1[j] * q2[j]) +
                                             static_cast<double>(dk2[j] * k1[j] - dk1[j] * k2[j]));
      }
    } else {
      f_.for_each_pair(m, [&](Index t, Index from, T base) {
        const T gradient = g_.s[t * kScanChunk + from] * base;
        const T response = m.kappa_cos * c[t - from] - m.kappa_sin * s[t - from];
        d_read[t] += gradient * m.write[from] * response;
        d_write[from] += gradient * m.read[t] * response;
        const auto gated = static_cast<double>(gradient * m.read[t] * m.write[from]);
        const double value = gated * static_cast<double>(response);
        g_.d_decay[t] -= value;
        g_.d_decay[from] += value;
        d_theta -= static_cast<double>(t - from) * gated *
                   static_cast<double>(m.kappa_cos * s[t - from] + m.kappa_sin * c[t - from]);
        d_cos += gated * static_cast<double>(c[t - from]);
        d_sin -= gated * static_cast<double>(s[t - from]);
      });
    }

    const T *b1 = row(f_.b, 0), *b2 = row(f_.b, 1), *w1 = row(f_.w, 0), *w2 = row(f_.w, 1);
    const T *db1 = row(g_.d_b, 0), *db2 = row(g_.d_b, 1), *dw1 = row(g_.d_w, 0), *dw2 = row(g_.d_w, 1);
    double through_leaving = 0;
    for (Index j = 0; j < n; ++j) {
      const T cn = c[j + 1], sn = s[j + 1];
      const T along_cos = db1[j] * cn - db2[j] * sn, along_sin = -db1[j] * sn - db2[j] * cn;
      d_cos += static_cast<double>(m.read[j] * m.entered[j] * along_cos);
      d_sin += static_cast<double>(m.read[j] * m.entered[j] * along_sin);
      d_read[j] += m.entered[j] * (m.kappa_cos * along_cos + m.kappa_sin * along_sin);
      const auto entered = static_cast<double>(db1[j] * b1[j] + db2[j] * b2[j]);
      g_.d_decay[j] -= entered;
      d_gamma -= entered;
      d_theta += static_cast<double>(j + 1) * static_cast<double>(db1[j] * b2[j] - db2[j] * b1[j]);

      const T cl = c[n - 1 - j], sl = s[n - 1 - j];
      d_write[j] += m.leaving[j] * (dw1[j] * cl + dw2[j] * sl);
      const auto left = static_cast<double>(dw1[j] * w1[j] + dw2[j] * w2[j]);
      g_.d_decay[j] += left;
      through_leaving += left;
      d_theta += static_cast<double>(n - 1 - j) * static_cast<double>(dw2[j] * w1[j] - dw1[j] * w2[j]);

      // The lag-zero term (1 - a) kappa_c read write v.
      const T current = g_.diagonal[j];
      const T kept = T(1) - m.zero_lag;
      d_read[j] += kept * m.kappa_cos * m.write[j] * current;
      d_write[j] += kept * m.kappa_cos * m.read[j] * current;
      const auto gated = static_cast<double>(m.read[j] * m.write[j] * current);
      d_cos += static_cast<double>(kept) * gated;
      d_lag -= static_cast<double>(m.kappa_cos) * gated;
    }

    // The entering state that passes through the whole chunk.
    const T *h1 = state_ + 2 * i * width_, *h2 = h1 + width_, *e1 = adjoint_ + 2 * i * width_, *e2 = e1 + width_;
    double straight = 0, crossed = 0;
    for (Index p = 0; p < width_; ++p) {
      straight += static_cast<double>(e1[p] * h1[p]) + static_cast<double>(e2[p] * h2[p]);
      crossed += static_cast<double>(e2[p] * h1[p]) - static_cast<double>(e1[p] * h2[p]);
    }
    const auto through = static_cast<double>(m.through), cn = static_cast<double>(c[n]), sn = static_cast<double>(s[n]);
    const double passed = through * (cn * straight + sn * crossed);
    g_.d_decay[n - 1] -= through_leaving + passed;
    d_gamma -= passed;
    d_theta += static_cast<double>(n) * through * (cn * crossed - sn * straight);

    double later = 0;
    for (Index j = n - 1; j >= 0; --j) {
      d_gamma += static_cast<double>(j) * g_.d_decay[j];
      later += g_.d_decay[j];
      op_.d_clock(first + j, column) = static_cast<T>(later);
      op_.d_write(first + j, column) = d_write[j];
      op_.d_read(first + j, column) = d_read[j];
    }
    sums.gamma += d_gamma;
    sums.theta += d_theta;
    sums.kappa_cos += d_cos;
    sums.kappa_sin += d_sin;
    sums.zero_lag += d_lag;
  }

  // adjoint of the entering state = what flows through the chunk + b^T d_z.
  void carry_adjoint(Index first) {
    for (Index i = 0; i < modes_; ++i) {
      const auto& m = f_.mode[i];
      const T c = m.through * m.cosine[f_.n], s = m.through * m.sine[f_.n];
      T *e1 = adjoint_ + 2 * i * width_, *e2 = e1 + width_;
      for (Index p = 0; p < width_; ++p) {
        const T x = e1[p], y = e2[p];
        e1[p] = c * x + s * y;
        e2[p] = c * y - s * x;
      }
    }
    const T* d_z = op_.d_z.row(first) + channel_ * width_;
    cpu::add_product<T>(2 * modes_, width_, f_.n, {f_.b, kScanChunk, 1}, d_z, op_.d_z.stride, adjoint_, width_);
  }

  const SelectiveScanBackward<T>& op_;
  const RotationTable<T>& rotations_;
  Index sequence_, channel_, modes_, width_, size_;
  ChunkFactors<T> f_;
  ChunkGradients<T> g_;
  T* adjoint_;
  const T* state_ = nullptr;
};

}  // namespace

template <class T>
void run(cpu::Stream& stream, const SelectiveScanForward<T>& op) {
  const Index channels = op.modes.decay.rows;
  Scratch shared(stream, 0);
  const auto rotations = cpu::make_rotations<T>(shared, stream.pool(), op.modes.frequency);
  stream.pool().each(op.sequences * channels, [&](Index task, int thread) {
    Scratch scratch(stream, thread);
    scan_forward(scratch, op, rotations, task / channels, task % channels);
  });
}

template <class T>
void run(cpu::Stream& stream, const SelectiveScanBackward<T>& op) {
  const Index channels = op.modes.decay.rows, modes = op.modes.decay.cols;
  Scratch shared(stream, 0);
  const auto rotations = cpu::make_rotations<T>(shared, stream.pool(), op.modes.frequency);
  auto* sums = shared.take<ModeSums>(op.sequences * channels * modes);
  std::fill_n(sums, op.sequences * channels * modes, ModeSums{});
  stream.pool().each(op.sequences * channels, [&](Index task, int thread) {
    Scratch scratch(stream, thread);
    ScanBackward<T>(scratch, op, rotations, task / channels, task % channels).run(sums + task * modes);
  });
  for (Index k = 0; k < channels; ++k) {
    for (Index i = 0; i < modes; ++i) {
      ModeSums total;
      for (Index b = 0; b < op.sequences; ++b) {
        const auto& part = sums[(b * channels + k) * modes + i];
        total.gamma += part.gamma;
        total.theta += part.theta;
        total.kappa_cos += part.kappa_cos;
        total.kappa_sin += part.kappa_sin;
        total.zero_lag += part.zero_lag;
      }
      // gamma = softplus(decay)
      const double slope = 1.0 / (1.0 + std::exp(-static_cast<double>(op.modes.decay(k, i))));
      op.d_modes.decay(k, i) += static_cast<T>(total.gamma * slope);
      op.d_modes.frequency(k, i) += static_cast<T>(total.theta);
      op.d_modes.readout_cos(k, i) += static_cast<T>(total.kappa_cos);
      op.d_modes.readout_sin(k, i) += static_cast<T>(total.kappa_sin);
      op.d_modes.zero_lag(k, i) += static_cast<T>(total.zero_lag);
    }
  }
}

template <class T>
void run(cpu::Stream& stream, const SelectiveStep<T>& op) {
  const Index channels = op.modes.decay.rows, modes = op.modes.decay.cols, width = op.width;
  stream.pool().split(op.v.rows * channels, [&](Index begin, Index end, int) {
    for (Index task = begin; task < end; ++task) {
      const Index r = task / channels, k = task % channels;
      const T* v = op.v.row(r) + k * width;
      T* z = op.z.row(r) + k * width;
      T* state = op.state.row(r) + k * 2 * modes * width;
      std::fill_n(z, width, T(0));
      T current = 0;
      for (Index i = 0; i < modes; ++i) {
        const Index column = k * modes + i;
        const T write = op.write(r, column), read = op.read(r, column), kappa_cos = op.modes.readout_cos(k, i);
        const double gamma = cpu::softplus_of(static_cast<double>(op.modes.decay(k, i)));
        const double theta = static_cast<double>(op.modes.frequency(k, i));
        const double kept = std::exp(-(gamma + static_cast<double>(op.clock(r, column))));
        const T c = static_cast<T>(kept * std::cos(theta)), s = static_cast<T>(kept * std::sin(theta));
        const T out_first = read * kappa_cos, out_second = -read * op.modes.readout_sin(k, i);
        current += op.modes.zero_lag(k, i) * read * write * kappa_cos;
        T *first = state + 2 * i * width, *second = first + width;
        for (Index p = 0; p < width; ++p) {
          const T x = c * first[p] - s * second[p] + write * v[p];
          const T y = s * first[p] + c * second[p];
          first[p] = x;
          second[p] = y;
          z[p] += out_first * x + out_second * y;
        }
      }
      for (Index p = 0; p < width; ++p) z[p] -= current * v[p];
    }
  });
}

template void run(cpu::Stream&, const SelectiveScanForward<float>&);
template void run(cpu::Stream&, const SelectiveScanForward<double>&);
template void run(cpu::Stream&, const SelectiveScanBackward<float>&);
template void run(cpu::Stream&, const SelectiveScanBackward<double>&);
template void run(cpu::Stream&, const SelectiveStep<float>&);
template void run(cpu::Stream&, const SelectiveStep<double>&);

}  // namespace essh
