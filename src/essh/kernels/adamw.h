#pragma once
#include "essh/device/stream.h"

namespace essh {

// One AdamW step over a flat range of elements, with g = clip * gradient:
//   first = b1 first + (1-b1) g,  second = b2 second + (1-b2) g^2
//   weight -= rate (first / (1 - b1^step) / (sqrt(second / (1 - b2^step)) + eps) + decay weight)
template <class W>
struct AdamW {
  Vector<W> weight, first, second;  // (in, out)
  Vector<const W> gradient;
  Vector<BFloat16> rounded;  // (=) the new weight rounded to nearest even; may be empty
  double rate, beta1, beta2, eps, decay, clip;
  Index step;  // from 1
};

template <class W>
void run(cpu::Stream&, const AdamW<W>&);
template <class W>
void run(cuda::Stream&, const AdamW<W>&);

}  // namespace essh
