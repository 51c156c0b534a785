#include "essh/device/cuda/launch.cuh"
#include "essh/kernels/cuda/tuned_launch.h"

namespace essh::cuda {
namespace {

using Hash = unsigned long long;

__device__ Hash scrambled(Hash x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Adds a hash of each pair of bytes and its place; integer sums do not depend on the order of the threads.
__global__ void add_hashes(Written part, Index first, Hash* sum) {
  const Index columns = part.row_bytes / 2, count = part.rows * columns;
  Hash mine = 0;
  for (Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += Index{gridDim.x} * blockDim.x) {
    const auto* row = static_cast<const char*>(part.data) + i / columns * part.stride;
    const Hash bits = reinterpret_cast<const unsigned short*>(row)[i % columns];
    mine += scrambled(static_cast<Hash>(first + i) << 16 | bits);
  }
  for (int offset = 16; offset > 0; offset /= 2) mine += __shfl_xor_sync(0xffffffffu, mine, offset);
  if (threadIdx.x % 32 == 0) atomicAdd(sum, mine);
}

}  // namespace

std::uint64_t fingerprint(Stream& stream, std::span<const Written> results) {
  Scratch scratch(stream);
  auto* sum = scratch.take<Hash>(1);
  check(cudaMemsetAsync(sum, 0, sizeof(Hash), stream.handle()), "fingerprint");
  Index first = 0;
  for (const auto& part : results) {
    launch(stream, "fingerprint", {512, 256}, add_hashes, part, first, sum);
    first += part.rows * part.row_bytes / 2;
  }
  std::uint64_t found = 0;
  stream.copy(&found, sum, sizeof(found));
  return found;
}

}  // namespace essh::cuda
