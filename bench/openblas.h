#pragma once
#include <string>

namespace essh::bench {

// The library's float product at 2048^3 with all cores, as a yardstick for ours: operations per second, and which
// processor it takes this one for. Zero when the build found no OpenBLAS.
struct OpenBlas {
  double flops_per_second = 0;
  std::string core;
};
OpenBlas measure_openblas();

}  // namespace essh::bench
