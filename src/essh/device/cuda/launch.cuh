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
};

// The one way a kernel is launched: named for profilers, checked, silent when the grid is empty.
template <class... Parameters, class... Arguments>
void launch(Stream& stream, const char* name, Shape shape, void (*kernel)(Parameters...), Arguments&&... arguments) {
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;
  const ProfileScope timed(stream, name);
  nvtxRangePushA(name);
  if (shape.shared > 48 * 1024)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shape.shared)),
          name);
  kernel<<<shape.grid, shape.block, shape.shared, stream.handle()>>>(std::forward<Arguments>(arguments)...);
  check(cudaGetLastError(), name);
  nvtxRangePop();
}

inline unsigned blocks_for(Index items, Index per_block) {
  return static_cast<unsigned>((items + per_block - 1) / per_block);
}

}  // namespace essh::cuda
