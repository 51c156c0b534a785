#pragma once
#include <string>

namespace essh::bench {

// OpenBLAS's float product at 2048^3 on all cores, for comparison: FLOP/s, and the processor that OpenBLAS detects.
// Zero if the build found no OpenBLAS.
struct OpenBlas {
  double flops_per_second = 0;
  std::string core;
};
OpenBlas measure_openblas();

}  // namespace essh::bench
