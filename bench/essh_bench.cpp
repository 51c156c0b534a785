#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>

#include "bench/machine.h"

namespace {

// OpenBLAS's threads spin after a product, by default for 2^26 to 2^28 ticks of the timer, on the cores of our next
// turn. OpenBLAS reads this variable when it is loaded: starts the program again with 2^20 ticks, half a millisecond.
void stop_spinning(char** argv) {
  constexpr const char* kVariable = "OPENBLAS_THREAD_TIMEOUT";
  if (std::getenv(kVariable) != nullptr || setenv(kVariable, "20", 1) != 0) return;
  execv("/proc/self/exe", argv);
}

}  // namespace

int main(int argc, char** argv) {
  stop_spinning(argv);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  const auto& machine = essh::bench::machine();
  benchmark::AddCustomContext("cores", fmt::format("{}", essh::bench::stream().pool().threads()));
  benchmark::AddCustomContext("read_peak", fmt::format("{:.1f} GB/s", machine.read_bytes_per_second / 1e9));
  benchmark::AddCustomContext("sgemm_peak", fmt::format("{:.1f} GFLOP/s", machine.flops_per_second / 1e9));
  if (!machine.openblas.core.empty()) {
    benchmark::AddCustomContext(
        "openblas",
        fmt::format("{:.1f} GFLOP/s, its {} kernels", machine.openblas.flops_per_second / 1e9, machine.openblas.core));
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
