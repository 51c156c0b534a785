#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace essh {

struct SimdFeature {
  std::string name;
  bool present;
};

struct Processor {
  std::string model;
  std::string architecture;       // "x86_64", "aarch64"
  std::vector<SimdFeature> simd;  // the relevant ones of this architecture, present or not
};

struct Memory {
  std::uint64_t total = 0;
  std::uint64_t available = 0;
};

// Facts reported by the operating system. A fact that cannot be read is empty or 0, never an error. Instructions that
// the operating system has not enabled count as absent; memory respects a container's limit.
Processor this_processor();
Memory this_memory();
// Peak resident memory of this process in bytes; 0 if unknown.
std::uint64_t peak_resident_memory();
// Bytes of the last-level cache of the first core, 0 if unknown.
std::uint64_t last_level_cache();
// Model names of the NVIDIA GPUs whose driver is loaded.
std::vector<std::string> nvidia_gpus();

// The same from the text of /proc/cpuinfo and /proc/meminfo.
Processor parse_processor(std::string_view cpuinfo, std::string_view architecture);
Memory parse_memory(std::string_view meminfo);

}  // namespace essh
