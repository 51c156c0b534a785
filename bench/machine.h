#pragma once
#include <benchmark/benchmark.h>

#include "bench/openblas.h"
#include "essh/device/cpu/stream.h"

namespace essh::bench {

// What this machine can do with all its cores, measured once at the start of the run: every line is a part of it.
struct Machine {
  double read_bytes_per_second;  // summing a buffer larger than the caches
  double flops_per_second;       // the best float product, ours or OpenBLAS's
  OpenBlas openblas;
};
const Machine& machine();

// The team of all cores, shared by all benchmarks.
cpu::Stream& stream();

// Counters of one benchmark: its rate, and that rate in percent of the machine's. Call after the loop.
void count_flops(benchmark::State& state, double flops_per_iteration);
void count_bytes(benchmark::State& state, double bytes_per_iteration);
void count_tokens(benchmark::State& state, double tokens_per_iteration);

}  // namespace essh::bench
