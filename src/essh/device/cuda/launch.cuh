#pragma once
#include <nvtx3/nvToolsExt.h>

#include <utility>

#include "essh/device/cuda/check.h"
#include "essh/device/cuda/profile.h"

namespace essh::cuda {

struct Shape {
  dim3 grid;
  dim3 block;
  std::size_t shared = 0;  // dynamic shared memory, bytes
  // Programmatic dependent launch: the kernel starts with after_previous(), so its blocks may be scheduled while the
  // previous kernel finishes.
  bool early = false;
  // All blocks are resident at once and may wait for each other; an error if they do not fit.
  bool cooperative = false;
  // Blocks of a cluster, adjacent in x; sm_90 and later.
  unsigned cluster = 1;
};

// Waits until all previous launches have finished and their results are visible.
__device__ inline void after_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

// Lets the next launch, if it is an early one, take the places that this kernel leaves free: from the time on when all
// blocks have called this or ended. The next kernel's after_previous() still waits for the end of this one, so every
// early kernel must call that, or it would end before kernels that are two launches back.
__device__ inline void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// The only way to launch a kernel: named for profilers, checked, a no-op for an empty grid.
template <class... Parameters, class... Arguments>
void launch(Stream& stream, const char* name, Shape shape, void (*kernel)(Parameters...), Arguments&&... arguments) {
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;
  const ProfileScope timed(stream, name);
  nvtxRangePushA(name);
  // Without the attribute a block gets 48 KB, including the kernel's static shared memory.
  if (shape.shared > 32 * 1024)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shape.shared)),
          name);
  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (shape.cooperative) {
    attributes[count].id = cudaLaunchAttributeCooperative;
    attributes[count++].val.cooperative = 1;
  } else if (shape.early && stream.early_launches()) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {shape.cluster, 1, 1};
  }
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared;
  config.stream = stream.handle();
  config.attrs = attributes;
  config.numAttrs = count;
  check(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...), name);
  nvtxRangePop();
}

inline unsigned blocks_for(Index items, Index per_block) {
  return static_cast<unsigned>((items + per_block - 1) / per_block);
}

}  // namespace essh::cuda
