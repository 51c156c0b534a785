#pragma once
#include "essh/device/stream.h"

namespace essh {

// The elementwise kernels of a Muon step; Gemm makes the products between them.

// Nesterov momentum, with g = clip * gradient:
//   momentum = beta momentum + (1 - beta) g,  direction = beta momentum + (1 - beta) g
template <class W>
struct MuonMomentum {
  Vector<W> momentum;  // (in, out)
  Vector<const W> gradient;
  Vector<W> direction;  // (=)
  double beta, clip;
};

// to = from / sqrt(squares[0]); zero if squares[0] is 0.
template <class T>
struct MuonNormalise {
  Vector<const Wide<T>> from;
  const double* squares;  // one element
  Vector<T> to;           // (=)
};

// weight -= rate (direction + decay weight)
template <class T>
struct MuonUpdate {
  Vector<Wide<T>> weight;  // (in, out)
  Vector<const T> direction;
  Vector<BFloat16> rounded;  // (=) the new weight rounded to nearest even; may be empty
  double rate, decay;
};

template <class W>
void run(cpu::Stream&, const MuonMomentum<W>&);
template <class W>
void run(cuda::Stream&, const MuonMomentum<W>&);
template <class T>
void run(cpu::Stream&, const MuonNormalise<T>&);
template <class T>
void run(cuda::Stream&, const MuonNormalise<T>&);
template <class T>
void run(cpu::Stream&, const MuonUpdate<T>&);
template <class T>
void run(cuda::Stream&, const MuonUpdate<T>&);

}  // namespace essh
