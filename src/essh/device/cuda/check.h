#pragma once
#include <cuda_runtime_api.h>

namespace essh::cuda {

// Turns an error of the runtime into Error{Device} or Error{OutOfMemory}; `what` names the call or the kernel.
void check(cudaError_t status, const char* what);

}  // namespace essh::cuda
