#pragma once
#include <benchmark/benchmark.h>

#include "bench/openblas.h"
#include "essh/device/cpu/stream.h"

namespace essh::bench {

// Peak rates of this machine with all cores, measured once at the start; every line is relative to them.
struct Machine {
  double read_bytes_per_second;  // by summing a buffer larger than the caches
  double flops_per_second;       // best float product, ours or OpenBLAS's
  OpenBlas openblas;
};
const Machine& machine();

// A stream over all cores, shared by all benchmarks.
cpu::Stream& stream();

// Counters of one benchmark: its rate, and the rate in percent of the machine's. Call after the loop.
void count_flops(benchmark::State& state, double flops_per_iteration);
void count_bytes(benchmark::State& state, double bytes_per_iteration);
void count_tokens(benchmark::State& state, double tokens_per_iteration);

}  // namespace essh::bench
