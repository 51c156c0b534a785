// The rate at which blocks copy memory into rings of shared memory, by the bytes in flight, and the latency of loads
// beside them that hit the L2 cache: what a block of the streamed step reads, and what it waits for.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "essh/device/cuda/launch.cuh"
#include "essh/kernels/cuda/device/tile_ring.cuh"

namespace essh {
namespace {

constexpr int kProbers = 4;     // warps
constexpr int kLines = 2048;    // of 128 bytes that they load from
constexpr int kMostSlots = 16;  // of a ring
constexpr Index kBytesPerBlock = Index{16} << 20;

struct Probes {
  unsigned long long cycles, count;
};

// One thread copies the block's part of `data`; other warps time loads of `lines`.
__global__ void stream_and_probe(const std::byte* data, int slots, int bytes, const unsigned* lines, Probes* probes) {
#if __CUDA_ARCH__ >= 900
  using namespace cuda::device;
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ std::uint64_t full[kMostSlots], empty[kMostSlots];
  __shared__ volatile bool done;
  const TileRing ring{memory, full, empty, slots, bytes};
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x == 0) {
    done = false;
    ring.init(1);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    RingPlace place{ring}, landed{ring};
    const std::byte* const from = data + blockIdx.x * kBytesPerBlock;
    int on_their_way = 0;
    const auto await_one = [&] {
      landed.await_filled();
      barrier_arrive(empty + landed.slot);
      landed.advance();
      --on_their_way;
    };
    for (Index offset = 0; offset < kBytesPerBlock; offset += bytes) {
      if (on_their_way == slots) await_one();
      place.fill(from + offset, static_cast<unsigned>(bytes));
      ++on_their_way;
    }
    while (on_their_way > 0) await_one();
    done = true;
  } else if (warp > 0) {
    Probes own{};
    unsigned random = blockIdx.x * 97 + static_cast<unsigned>(warp) * 31;
    while (!done) {
      random = random * 1664525u + 1013904223u;
      const unsigned* const from = lines + (random >> 8) % kLines * 32 + lane;
      unsigned value;
      long long end;
      const long long start = clock64();
      asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
      // Reads the clock once the value, which is zero, is there.
      asm volatile("{\n.reg .pred there;\nsetp.eq.u32 there, %1, 0;\nmov.u64 %0, 0;\n@there mov.u64 %0, %%clock64;\n}\n"
                   : "=l"(end)
                   : "r"(value)
                   : "memory");
      own.cycles += static_cast<unsigned long long>(end - start);
      ++own.count;
      __nanosleep(200);
    }
    if (lane == 0 && warp == 1) probes[blockIdx.x] = own;
  }
#endif
}

void measure() {
  using cuda::check;
  cuda::Stream stream;
  if (!stream.early_launches()) fail(ErrorKind::Unsupported, "needs sm_90 and code for it");
  const auto blocks = static_cast<std::size_t>(stream.multiprocessors());
  const auto size = static_cast<std::size_t>(kBytesPerBlock) * blocks;
  const Buffer data(Device::Cuda, size, "data"), lines(Device::Cuda, kLines * 128, "lines"),
      found(Device::Cuda, blocks * sizeof(Probes), "probes");
  check(cudaMemset(data.as<void>(), 0, size), "memory");
  check(cudaMemset(lines.as<void>(), 0, kLines * 128), "memory");
  cudaEvent_t start, end;
  check(cudaEventCreate(&start), "event");
  check(cudaEventCreate(&end), "event");
  fmt::print("{:>14} {:>10} {:>6} {:>21}\n", "bytes of a copy", "in flight", "TB/s", "cycles of an L2 hit");
  for (const int bytes : {4096, 8192, 16384}) {
    for (const int kilobytes : {16, 32, 48, 64, 96, 128, 176}) {
      const int slots = kilobytes * 1024 / bytes;
      if (slots > kMostSlots) continue;
      float best = 1e9f;
      Probes sum{};
      for (int round = 0; round < 3; ++round) {
        check(cudaEventRecord(start, stream.handle()), "event");
        cuda::launch(stream, "stream and probe",
                     {.grid = dim3(static_cast<unsigned>(blocks)),
                      .block = dim3(32 * (1 + kProbers)),
                      .shared = static_cast<std::size_t>(kilobytes) * 1024},
                     stream_and_probe, data.as<std::byte>(), slots, bytes, lines.as<unsigned>(), found.as<Probes>());
        check(cudaEventRecord(end, stream.handle()), "event");
        check(cudaEventSynchronize(end), "stream and probe");
        float ms = 0;
        check(cudaEventElapsedTime(&ms, start, end), "event");
        if (ms >= best) continue;
        best = ms;
        std::vector<Probes> all(blocks);
        stream.copy(all.data(), found.as<void>(), blocks * sizeof(Probes));
        sum = {};
        for (const auto& one : all) {
          sum.cycles += one.cycles;
          sum.count += one.count;
        }
      }
      fmt::print("{:>14} {:>7} KB {:>6.2f} {:>21.0f}\n", bytes, kilobytes,
                 static_cast<double>(size) / static_cast<double>(best) / 1e9,
                 static_cast<double>(sum.cycles) / static_cast<double>(std::max(1ull, sum.count)));
    }
  }
}

}  // namespace
}  // namespace essh

int main() {
  try {
    essh::measure();
  } catch (const std::exception& error) {
    fmt::print(stderr, "cuda_stream_latency: {}\n", error.what());
    return 1;
  }
}
