#include <fmt/format.h>

#include "bench/machine.h"

int main(int argc, char** argv) {
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
