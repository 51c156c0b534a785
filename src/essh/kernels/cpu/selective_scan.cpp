#include "essh/kernels/selective_scan.h"

#include <algorithm>
#include <cmath>

#include "essh/kernels/cpu/reduce.h"
#include "essh/kernels/cpu/scan_chunk.h"

namespace essh {
namespace {

using cpu::ChunkFactors;
using cpu::RotationTable;
using cpu::Scratch;

// A channel's state, `size` numbers from `first` on, from and to memory that holds T, or bf16 if narrow.
template <class T>
void load_state(const T* from, bool narrow, Index first, Index size, T* state) {
  if (!narrow) {
    std::copy_n(from + first, size, state);
    return;
  }
  const auto* rounded = reinterpret_cast<const BFloat16*>(from) + first;
  std::transform(rounded, rounded + size, state, [](BFloat16 x) { return static_cast<T>(static_cast<float>(x)); });
}
template <class T>
void store_state(const T* state, bool narrow, Index first, Index size, T* to) {
  if (!narrow) {
    std::copy_n(state, size, to + first);
    return;
  }
  std::transform(state, state + size, reinterpret_cast<BFloat16*>(to) + first,
                 [](T x) { return BFloat16(static_cast<float>(x)); });
}

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
  T* v = scratch.take<T>(kScanChunk * width);
  T* z = scratch.take<T>(kScanChunk * width);
  if (op.entering.empty())
    std::fill_n(state, size, T(0));
  else
    load_state(op.entering[sequence], op.narrow_states, channel * size, size, state);
  for (Index chunk = 0; chunk < chunks; ++chunk) {
    const Index first = sequence * op.length + chunk * kScanChunk;
    const Index n = std::min(kScanChunk, op.length - chunk * kScanChunk);
    if (!op.boundary.empty()) std::copy_n(state, size, op.boundary.row(sequence * chunks + chunk) + channel * size);
    f.compute(op, rotations, first, n, channel);
    cpu::copy_block(n, width, op.v.row(first) + channel * width, op.v.stride, v, width);
    cpu::set_product<T>(n, width, n, {f.g, kScanChunk, 1}, v, width, z, width, cpu::Shape::Lower);
    cpu::add_product<T>(n, width, 2 * modes, {f.b, 1, kScanChunk}, state, width, z, width);
    cpu::copy_block(n, width, z, width, op.z.row(first) + channel * width, op.z.stride);
    carry_state(f, state, width);
    cpu::add_product<T>(2 * modes, width, n, {f.w, kScanChunk, 1}, v, width, state, width);
  }
  if (!op.leaving.empty()) store_state(state, op.narrow_states, channel * size, size, op.leaving[sequence]);
}

// Gradients of one channel's modal tables summed over one sequence, per mode.
struct ModeSums {
  double gamma = 0, theta = 0, kappa_cos = 0, kappa_sin = 0, zero_lag = 0;
};

// Buffers of the backward pass of one chunk.
template <class T>
struct ChunkGradients {
  T *s, *s_transposed;               // [time][time]: d_z v^T, strictly lower
  T *d_z, *d_v;                      // [time][width]
  T *v_transposed, *d_z_transposed;  // [width][time]
  T *d_q, *d_k, *d_b, *d_w;          // [2 modes][time]
  T *d_write, *d_read, *d_clock;     // [modes][time]
  T* diagonal;                       // d_z.v at each token

  ChunkGradients(Scratch& scratch, Index modes, Index width) {
    for (T** square : {&s, &s_transposed}) *square = scratch.take<T>(kScanChunk * kScanChunk);
    for (T** values : {&d_z, &d_v, &v_transposed, &d_z_transposed}) *values = scratch.take<T>(width * kScanChunk);
    for (T** factor : {&d_q, &d_k, &d_b, &d_w}) *factor = scratch.take<T>(2 * modes * kScanChunk);
    for (T** gate : {&d_write, &d_read, &d_clock}) *gate = scratch.take<T>(modes * kScanChunk);
    diagonal = scratch.take<T>(kScanChunk);
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
      for (Index i = 0; i < modes_; ++i) mode_gradients(i, sums[i]);
      write_gates(first);
      carry_adjoint();
    }
    if (!op_.d_entering.empty()) std::copy_n(adjoint_, size_, op_.d_entering.row(sequence_) + channel_ * size_);
  }

 private:
  // Gradients of values and of the factors q, k, b, w by matrix products.
  void factor_gradients(Index first) {
    const Index n = f_.n, inner = 2 * modes_, column = channel_ * width_;
    cpu::copy_block(n, width_, op_.d_z.row(first) + column, op_.d_z.stride, g_.d_z, width_);
    cpu::transpose(n, width_, g_.d_z, width_, g_.d_z_transposed, kScanChunk);
    cpu::transpose(n, width_, op_.v.row(first) + column, op_.v.stride, g_.v_transposed, kScanChunk);

    cpu::set_product<T>(n, width_, n, {f_.g, 1, kScanChunk}, g_.d_z, width_, g_.d_v, width_, cpu::Shape::Upper);
    cpu::add_product<T>(n, width_, inner, {f_.w, 1, kScanChunk}, adjoint_, width_, g_.d_v, width_);
    cpu::copy_block(n, width_, g_.d_v, width_, op_.d_v.row(first) + column, op_.d_v.stride);

    for (Index t = 0; t < n; t += f_.kRowBlock) {
      const Index rows = std::min(f_.kRowBlock, n - t), end = t + rows;
      cpu::set_product<T>(rows, end, width_, {g_.d_z + t * width_, width_, 1}, g_.v_transposed, kScanChunk,
                          g_.s + t * kScanChunk, kScanChunk);
      for (Index row = t; row < end; ++row) {
        g_.diagonal[row] = g_.s[row * kScanChunk + row];
        std::fill(g_.s + row * kScanChunk + row, g_.s + row * kScanChunk + n, T(0));
      }
    }
    cpu::transpose(n, n, g_.s, kScanChunk, g_.s_transposed, kScanChunk);

    const auto product = [&](const T* a, Index stride, Index depth, const T* b, T* out) {
      cpu::set_product<T>(inner, n, depth, {a, stride, 1}, b, kScanChunk, out, kScanChunk);
    };
    product(f_.k, kScanChunk, n, g_.s_transposed, g_.d_q);
    product(f_.q, kScanChunk, n, g_.s, g_.d_k);
    product(state_, width_, width_, g_.d_z_transposed, g_.d_b);
    product(adjoint_, width_, width_, g_.v_transposed, g_.d_w);
  }

  // From gradients of the factors to those of the gates, the clock and the modal tables. Every factor is a gate times
  // e^{+-l} times a rotation, so its inner product with its gradient goes to the gate and to l, and the inner product
  // rotated by 90 degrees goes to theta.
  void mode_gradients(Index i, ModeSums& sums) {
    const Index n = f_.n;
    const auto& m = f_.mode[i];
    const T *c = m.cosine, *s = m.sine;
    TokenTerms at;
    if (m.factored)
      factored_terms(i, at);
    else
      direct_terms(m, at);

    const auto row = [&](T* factor, Index part) { return f_.row(factor, i, part); };
    const T *b1 = row(f_.b, 0), *b2 = row(f_.b, 1), *w1 = row(f_.w, 0), *w2 = row(f_.w, 1);
    const T *db1 = row(g_.d_b, 0), *db2 = row(g_.d_b, 1), *dw1 = row(g_.d_w, 0), *dw2 = row(g_.d_w, 1);
    const T kappa_cos = m.kappa_cos, kappa_sin = m.kappa_sin, kept = T(1) - m.zero_lag;
    double entered[kScanChunk], left[kScanChunk];
    for (Index j = 0; j < n; ++j) {
      const T along_cos = db1[j] * c[j + 1] - db2[j] * s[j + 1], along_sin = -db1[j] * s[j + 1] - db2[j] * c[j + 1];
      const T target = m.read[j] * m.entered[j];
      at.kappa_cos[j] += static_cast<double>(target * along_cos);
      at.kappa_sin[j] += static_cast<double>(target * along_sin);
      at.read[j] += m.entered[j] * (kappa_cos * along_cos + kappa_sin * along_sin);
      entered[j] = static_cast<double>(db1[j] * b1[j] + db2[j] * b2[j]);
      at.theta[j] += static_cast<double>(j + 1) * static_cast<double>(db1[j] * b2[j] - db2[j] * b1[j]);
    }
    for (Index j = 0; j < n; ++j) {
      const Index back = n - 1 - j;
      at.write[j] += m.leaving[j] * (dw1[j] * c[back] + dw2[j] * s[back]);
      left[j] = static_cast<double>(dw1[j] * w1[j] + dw2[j] * w2[j]);
      at.theta[j] += static_cast<double>(back) * static_cast<double>(dw2[j] * w1[j] - dw1[j] * w2[j]);
    }
    // The lag-zero term (1 - a) kappa_c read write v.
    double gated[kScanChunk];
    for (Index j = 0; j < n; ++j) {
      const T current = g_.diagonal[j];
      at.read[j] += kept * kappa_cos * m.write[j] * current;
      at.write[j] += kept * kappa_cos * m.read[j] * current;
      gated[j] = static_cast<double>(m.read[j] * m.write[j] * current);
    }
    for (Index j = 0; j < n; ++j) at.decay[j] += left[j] - entered[j];

    // The entering state carried through the whole chunk.
    const T *h1 = state_ + 2 * i * width_, *h2 = h1 + width_, *e1 = adjoint_ + 2 * i * width_, *e2 = e1 + width_;
    const auto straight = static_cast<double>(cpu::dot(width_, e1, h1) + cpu::dot(width_, e2, h2));
    const auto crossed = static_cast<double>(cpu::dot(width_, e2, h1) - cpu::dot(width_, e1, h2));
    const auto through = static_cast<double>(m.through), cn = static_cast<double>(c[n]), sn = static_cast<double>(s[n]);
    const double passed = through * (cn * straight + sn * crossed);
    at.decay[n - 1] -= total(left) + passed;

    const double lag_zero = total(gated);
    sums.gamma += cpu::sum_of<double>(n, [&](Index j) { return static_cast<double>(j) * at.decay[j]; });
    sums.gamma -= total(entered) + passed;
    sums.theta += total(at.theta) + static_cast<double>(n) * through * (cn * crossed - sn * straight);
    sums.kappa_cos += total(at.kappa_cos) + static_cast<double>(kept) * lag_zero;
    sums.kappa_sin += total(at.kappa_sin);
    sums.zero_lag -= static_cast<double>(kappa_cos) * lag_zero;

    double later = 0;
    for (Index j = n - 1; j >= 0; --j) {
      later += at.decay[j];
      g_.d_clock[i * kScanChunk + j] = static_cast<T>(later);
    }
    std::copy_n(at.write, n, g_.d_write + i * kScanChunk);
    std::copy_n(at.read, n, g_.d_read + i * kScanChunk);
  }

  // Terms of one mode's gradients, per token; `decay` is the gradient of l(j).
  struct TokenTerms {
    T write[kScanChunk] = {}, read[kScanChunk] = {};
    double decay[kScanChunk] = {}, theta[kScanChunk] = {}, kappa_cos[kScanChunk] = {}, kappa_sin[kScanChunk] = {};
  };
  double total(const double* terms) const {
    return cpu::sum_of<double>(f_.n, [&](Index j) { return terms[j]; });
  }

  void factored_terms(Index i, TokenTerms& at) const {
    const auto& m = f_.mode[i];
    const auto row = [&](T* factor, Index part) { return f_.row(factor, i, part); };
    const T *c = m.cosine, *s = m.sine;
    const T *q1 = row(f_.q, 0), *q2 = row(f_.q, 1), *k1 = row(f_.k, 0), *k2 = row(f_.k, 1);
    const T *dq1 = row(g_.d_q, 0), *dq2 = row(g_.d_q, 1), *dk1 = row(g_.d_k, 0), *dk2 = row(g_.d_k, 1);
    const T kappa_cos = m.kappa_cos, kappa_sin = m.kappa_sin;
    for (Index j = 0; j < f_.n; ++j) {
      const T along_cos = dq1[j] * c[j] + dq2[j] * s[j], along_sin = dq2[j] * c[j] - dq1[j] * s[j];
      const T target = m.read[j] * m.falling[j];
      at.kappa_cos[j] = static_cast<double>(target * along_cos);
      at.kappa_sin[j] = static_cast<double>(target * along_sin);
      at.read[j] = m.falling[j] * (kappa_cos * along_cos + kappa_sin * along_sin);
      at.write[j] = (dk1[j] * c[j] + dk2[j] * s[j]) * m.rising[j];
    }
    for (Index j = 0; j < f_.n; ++j) {
      at.decay[j] =
          static_cast<double>(dk1[j] * k1[j] + dk2[j] * k2[j]) - static_cast<double>(dq1[j] * q1[j] + dq2[j] * q2[j]);
      at.theta[j] = static_cast<double>(j) * (static_cast<double>(dq2[j] * q1[j] - dq1[j] * q2[j]) +
                                              static_cast<double>(dk2[j] * k1[j] - dk1[j] * k2[j]));
    }
  }

  void direct_terms(const cpu::ChunkMode<T>& m, TokenTerms& at) const {
    const T *c = m.cosine, *s = m.sine;
    f_.for_each_pair(m, [&](Index t, Index from, T base) {
      const T gradient = g_.s[t * kScanChunk + from] * base;
      const T response = m.kappa_cos * c[t - from] - m.kappa_sin * s[t - from];
      at.read[t] += gradient * m.write[from] * response;
      at.write[from] += gradient * m.read[t] * response;
      const auto gated = static_cast<double>(gradient * m.read[t] * m.write[from]);
      const double value = gated * static_cast<double>(response);
      at.decay[t] -= value;
      at.decay[from] += value;
      at.theta[from] -= static_cast<double>(t - from) * gated *
                        static_cast<double>(m.kappa_cos * s[t - from] + m.kappa_sin * c[t - from]);
      at.kappa_cos[from] += gated * static_cast<double>(c[t - from]);
      at.kappa_sin[from] -= gated * static_cast<double>(s[t - from]);
    });
  }

  void write_gates(Index first) const {
    const auto write = [&](const T* gradient, Matrix<T> out) {
      cpu::transpose(modes_, f_.n, gradient, kScanChunk, out.row(first) + channel_ * modes_, out.stride);
    };
    write(g_.d_write, op_.d_write);
    write(g_.d_read, op_.d_read);
    write(g_.d_clock, op_.d_clock);
  }

  // adjoint of the entering state = adjoint carried back through the chunk + b^T d_z.
  void carry_adjoint() {
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
    cpu::add_product<T>(2 * modes_, width_, f_.n, {f_.b, kScanChunk, 1}, g_.d_z, width_, adjoint_, width_);
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
  const Index channels = op.modes.decay.rows, modes = op.modes.decay.cols, width = op.width, rows = op.v.rows;
  // Channel-major, so that each channel's tables are computed once for all sequences.
  stream.pool().split(channels * rows, [&](Index begin, Index end, int thread) {
    Scratch scratch(stream, thread);
    double* gamma = scratch.take<double>(modes);
    double* cosine = scratch.take<double>(modes);
    double* sine = scratch.take<double>(modes);
    const Index size = 2 * modes * width;
    T* widened = op.narrow_states ? scratch.take<T>(size) : nullptr;
    Index known = -1;
    for (Index task = begin; task < end; ++task) {
      const Index k = task / rows, r = task % rows;
      for (Index i = 0; i < modes && k != known; ++i) {
        const auto theta = static_cast<double>(op.modes.frequency(k, i));
        gamma[i] = cpu::softplus_of(static_cast<double>(op.modes.decay(k, i)));
        cosine[i] = std::cos(theta);
        sine[i] = std::sin(theta);
      }
      known = k;
      const T* v = op.v.row(r) + k * width;
      T* __restrict z = op.z.row(r) + k * width;
      if (op.kept.size > 0 && k >= op.kept[r]) {
        std::fill_n(z, width, T(0));
        continue;
      }
      T* state = widened ? widened : op.leaving[r] + k * size;
      if (widened || op.entering[r] != op.leaving[r])
        load_state(op.entering[r], op.narrow_states, k * size, size, state);
      std::fill_n(z, width, T(0));
      T current = 0;
      for (Index i = 0; i < modes; ++i) {
        const Index column = k * modes + i;
        const T write = op.write(r, column), read = op.read(r, column), kappa_cos = op.modes.readout_cos(k, i);
        const double kept = std::exp(-(gamma[i] + static_cast<double>(op.clock(r, column))));
        const T c = static_cast<T>(kept * cosine[i]), s = static_cast<T>(kept * sine[i]);
        const T out_first = read * kappa_cos, out_second = -read * op.modes.readout_sin(k, i);
        current += op.modes.zero_lag(k, i) * read * write * kappa_cos;
        T* __restrict first = state + 2 * i * width, * __restrict second = first + width;
        for (Index p = 0; p < width; ++p) {
          const T x = c * first[p] - s * second[p] + write * v[p];
          const T y = s * first[p] + c * second[p];
          first[p] = x;
          second[p] = y;
          z[p] += out_first * x + out_second * y;
        }
      }
      if (widened) store_state(widened, true, k * size, size, op.leaving[r]);
      for (Index p = 0; p < width; ++p) z[p] -= current * v[p];
      if (op.kept.size > 0) {
        const T scale = static_cast<T>(std::sqrt(static_cast<double>(channels) / static_cast<double>(op.kept[r])));
        for (Index p = 0; p < width; ++p) z[p] *= scale;
      }
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
