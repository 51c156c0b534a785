#pragma once
#include "essh/device/stream.h"

namespace essh {

// mean = memory mean + (1 - memory) sums / count.
struct RunningMean {
  Vector<const double> sums;
  Vector<double> mean;  // (in, out)
  double memory;
  double count;
};

void run(cpu::Stream&, const RunningMean&);
void run(cuda::Stream&, const RunningMean&);

}  // namespace essh
