#pragma once
#include <string_view>

#include "essh/device/memory.h"

namespace essh {

// The arithmetic of a model. Auto is bf16 on CUDA and float32 on the CPU.
enum class Precision { Auto, Float32, BFloat16 };
Precision parse_precision(std::string_view name);
// Never Auto. bf16 on the CPU is refused.
Precision precision_on(Device device, Precision wanted);

}  // namespace essh
