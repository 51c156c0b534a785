#pragma once
#include "essh/device/cuda/stream.h"
#include "essh/kernels/selective_scan.h"

struct float2;

namespace essh::cuda {

struct ScanTables;

// Computes turns [channel][mode][65] and gamma [channel][mode] from the modal tables.
void make_scan_tables(Stream& stream, const Modes<const float>& modes, float2* turns, float* gamma);

}  // namespace essh::cuda
