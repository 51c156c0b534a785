#pragma once
#include <chrono>

#include "essh/base/log.h"
#include "essh/base/machine.h"
#include "essh/base/units.h"
#include "essh/device/memory.h"

namespace essh::verbs {

// At the end of its scope, logs the wall time since its start and the peak memory of the process.
class CostLine {
 public:
  CostLine() = default;
  CostLine(const CostLine&) = delete;
  CostLine& operator=(const CostLine&) = delete;
  ~CostLine() {
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start_;
    const auto gpu = peak_bytes(Device::Cuda);
    log::info("{:.1f} s, peak memory {}{}", seconds.count(), format_bytes(static_cast<double>(peak_resident_memory())),
              gpu > 0 ? fmt::format(", {} on the GPU", format_bytes(static_cast<double>(gpu))) : "");
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace essh::verbs
