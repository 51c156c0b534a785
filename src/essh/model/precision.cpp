#include "essh/model/precision.h"

#include "essh/base/error.h"

namespace essh {

Precision parse_precision(std::string_view name) {
  if (name == "auto") return Precision::Auto;
  if (name == "float32") return Precision::Float32;
  if (name == "bf16") return Precision::BFloat16;
  fail(ErrorKind::Usage, "precision {}: choose auto, float32 or bf16", name);
}

Precision precision_on(Device device, Precision wanted) {
  const bool gpu = device == Device::Cuda;
  if (wanted == Precision::Auto) return gpu ? Precision::BFloat16 : Precision::Float32;
  if (wanted == Precision::BFloat16 && !gpu)
    fail(ErrorKind::Usage, "bf16 arithmetic runs on CUDA only; use a GPU, or float32 on the CPU");
  return wanted;
}

}  // namespace essh
