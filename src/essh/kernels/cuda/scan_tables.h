#pragma once
#include "essh/kernels/cuda/tuned_launch.h"
#include "essh/kernels/selective_scan.h"

struct float2;

namespace essh::cuda {

struct ScanTables;

// Computes turns [channel][mode][65] and gamma [channel][mode] from the modal tables.
void make_scan_tables(Stream& stream, const Modes<const float>& modes, float2* turns, float* gamma);

// Threads per block of the kernel that carries `tracks` values through the chunks, the serial part of a scan. The other
// kernels have no launch parameter: their layout fixes 64 tokens of one channel per block of four warps.
inline Index carry_threads(Stream& stream, const char* kernel, Index tracks, Index sequences, Index chunks,
                           std::span<const Written> results, const std::function<void(Index)>& launch) {
  constexpr Index kFewestChunks = 16;  // below 1024 tokens a trial costs more than it gains
  if (sequences * chunks < kFewestChunks) return kCarryThreads[0];
  const Index sizes[] = {size_class(tracks), size_class(chunks)};
  return tuned_parameter(stream, kernel, sizes, kCarryThreads, results, launch);
}

}  // namespace essh::cuda
