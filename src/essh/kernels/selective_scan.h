#pragma once
#include <algorithm>
#include <cmath>
#include <limits>

#include "essh/device/stream.h"

namespace essh {

// The recurrence of one mode i of channel k, with rho = exp(-gamma), gamma = softplus(decay):
//   H(t) = rho e^{-clock(t)} R(theta) H(t-1) + write(t) e1 v_k(t)^T           H in R^{2 x P}
//   z_k(t) = sum_i read(t) (H(t)^T kappa - zero_lag write(t) kappa_c v_k(t))   kappa = (kappa_c, -kappa_s)
// A state is stored as [channel][mode][2][P]. Kernels take one pointer per sequence, so states may lie anywhere; the
// vectors of pointers are in the memory of the kernel's device.

inline constexpr Index kScanChunk = 64;

// The modal tables of the retained channels, each channels x modes.
template <class W>
struct Modes {
  Matrix<W> decay, frequency, readout_cos, readout_sin, zero_lag;

  Modes first(Index channels) const {
    return {decay.top(channels), frequency.top(channels), readout_cos.top(channels), readout_sin.top(channels),
            zero_lag.top(channels)};
  }
  operator Modes<const W>() const requires(!std::is_const_v<W>) {
    return {decay, frequency, readout_cos, readout_sin, zero_lag};
  }
};

// Largest accumulated decay of a chunk for which the endpoint factors e^{-(l(t)-c)} and e^{l(s)-c}, c half of that
// decay, stay inside the range of W with a margin: 2 E_safe of the paper's admission test. The test is per sequence,
// chunk and mode, so a sequence's result never depends on its neighbours in the batch.
template <class W>
double admitted_decay() {
  constexpr double kMargin = 2e-3;
  const double largest = std::log(static_cast<double>(std::numeric_limits<W>::max())) + std::log(kMargin);
  const double smallest = -(std::log(static_cast<double>(std::numeric_limits<W>::min())) - std::log(kMargin));
  return 2 * std::min(largest, smallest);
}

// Chunked evaluation of `length` tokens of each sequence.
template <class T>
struct SelectiveScanForward {
  Index sequences, length, width;            // rows are sequence-major: token t of sequence b is row b * length + t
  Matrix<const T> v;                         // tokens x (channels * width)
  Matrix<const Wide<T>> write, read, clock;  // tokens x (channels * modes)
  Modes<const Wide<T>> modes;
  Vector<const Wide<T>* const> entering;  // state of each sequence; empty means zero
  Matrix<T> z;                            // (=) tokens x (channels * width); does not alias v
  Matrix<Wide<T>> boundary;  // (=) (sequences * chunks) x state entering each chunk, kept for backward; may be empty
  Vector<Wide<T>* const> leaving;  // (=) state after the last token; may be empty, leaving[b] may equal entering[b]
  double factor_range = admitted_decay<Wide<T>>();
  bool narrow_states = false;  // entering and leaving hold bf16 instead of Wide<T>
};

// `boundary` comes from the forward pass. Gradients of inputs are set (=), gradients of the modal tables accumulate
// (+=).
template <class T>
struct SelectiveScanBackward {
  Index sequences, length, width;
  Matrix<const T> v;
  Matrix<const Wide<T>> write, read, clock;
  Modes<const Wide<T>> modes;
  Matrix<const Wide<T>> boundary;
  Matrix<const T> d_z;
  Matrix<const Wide<T>> d_leaving;           // empty means zero
  Matrix<T> d_v;                             // (=)
  Matrix<Wide<T>> d_write, d_read, d_clock;  // (=)
  Modes<Wide<T>> d_modes;                    // (+=)
  Matrix<Wide<T>> d_entering;                // (=) may be empty
  double factor_range = admitted_decay<Wide<T>>();
};

// One token of each sequence.
template <class T>
struct SelectiveStep {
  Index width;
  Matrix<const T> v;                         // sequences x (channels * width)
  Matrix<const Wide<T>> write, read, clock;  // sequences x (channels * modes)
  Modes<const Wide<T>> modes;
  Vector<const Wide<T>* const> entering;  // state of each sequence
  Vector<Wide<T>* const> leaving;         // (=) state after the token; leaving[b] may equal entering[b]
  Matrix<T> z;                            // (=) sequences x (channels * width)
  // Channels kept by each sequence; empty means all. Channels beyond have no state and read out zero. The readout is
  // scaled by sqrt(channels / kept), so that one scale of the output product fits every sequence.
  Vector<const std::int32_t> kept = {};
  bool narrow_states = false;  // entering and leaving hold bf16 instead of Wide<T>
};

inline Index scan_chunks(Index length) {
  return (length + kScanChunk - 1) / kScanChunk;
}

template <class T>
void run(cpu::Stream&, const SelectiveScanForward<T>&);
template <class T>
void run(cuda::Stream&, const SelectiveScanForward<T>&);
template <class T>
void run(cpu::Stream&, const SelectiveScanBackward<T>&);
template <class T>
void run(cuda::Stream&, const SelectiveScanBackward<T>&);
template <class T>
void run(cpu::Stream&, const SelectiveStep<T>&);
template <class T>
void run(cuda::Stream&, const SelectiveStep<T>&);

}  // namespace essh
