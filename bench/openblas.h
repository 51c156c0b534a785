#pragma once
#include <string>

#include "essh/kernels/gemm.h"

namespace essh::bench {

// OpenBLAS's float product at 2048^3 on all cores, for comparison: FLOP/s, and the processor that OpenBLAS detects.
// Zero if the build found no OpenBLAS.
struct OpenBlas {
  double flops_per_second = 0;
  std::string core;
};
OpenBlas measure_openblas();

// The same product (alpha and beta as in a new Gemm) by the library, with all cores. False when there is none.
bool run_openblas(const Gemm<float>& op);

}  // namespace essh::bench
