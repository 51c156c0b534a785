#pragma once
#include "essh/device/stream.h"

namespace essh {

// to = from, rounded to nearest even.
struct RoundWeights {
  Vector<const float> from;
  Vector<BFloat16> to;  // (=)
};

void run(cpu::Stream&, const RoundWeights&);
void run(cuda::Stream&, const RoundWeights&);

}  // namespace essh
