#include "essh/base/machine.h"

#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>

#include "essh/base/error.h"

namespace essh {
namespace {

struct KnownFeature {
  const char* name;
  const char* flag;  // the kernel's name
};
constexpr std::array kX86Features{
    KnownFeature{"AVX2", "avx2"},
    KnownFeature{"FMA", "fma"},
    KnownFeature{"AVX-512", "avx512f"},
    KnownFeature{"AVX-512 VNNI", "avx512_vnni"},
    KnownFeature{"AVX-VNNI", "avx_vnni"},
    KnownFeature{"AVX-512 BF16", "avx512_bf16"},
    KnownFeature{"AVX-512 FP16", "avx512_fp16"},
    KnownFeature{"AMX INT8", "amx_int8"},
    KnownFeature{"AMX BF16", "amx_bf16"},
};
constexpr std::array kArmFeatures{
    KnownFeature{"NEON", "asimd"}, KnownFeature{"FP16", "asimdhp"}, KnownFeature{"dotprod", "asimddp"},
    KnownFeature{"i8mm", "i8mm"},  KnownFeature{"BF16", "bf16"},    KnownFeature{"SVE", "sve"},
    KnownFeature{"SVE2", "sve2"},
};

// The kernel does not name ARM cores; these are common in servers and small boards.
constexpr std::array<std::pair<const char*, const char*>, 10> kArmParts{{{"0xd03", "ARM Cortex-A53"},
                                                                         {"0xd08", "ARM Cortex-A72"},
                                                                         {"0xd0b", "ARM Cortex-A76"},
                                                                         {"0xd0c", "ARM Neoverse N1"},
                                                                         {"0xd40", "ARM Neoverse V1"},
                                                                         {"0xd49", "ARM Neoverse N2"},
                                                                         {"0xd4f", "ARM Neoverse V2"},
                                                                         {"0xd83", "ARM Neoverse V3AE"},
                                                                         {"0xd84", "ARM Neoverse V3"},
                                                                         {"0xd8e", "ARM Neoverse N3"}}};

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\n") - first + 1);
}

// The value of the first "key : value" line, or empty.
std::string_view value_of(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const auto line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const auto colon = line.find(':');
    if (colon != std::string_view::npos && trimmed(line.substr(0, colon)) == key)
      return trimmed(line.substr(colon + 1));
  }
  return {};
}

bool has_word(std::string_view words, std::string_view word) {
  while (!words.empty()) {
    const auto next = words.substr(0, words.find(' '));
    if (next == word) return true;
    words.remove_prefix(std::min(words.size(), next.size() + 1));
  }
  return false;
}

std::optional<std::uint64_t> leading_number(std::string_view text) {
  std::uint64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc{}) return std::nullopt;
  return value;
}

// Files of /proc and /sys report no size: read to the end, up to a limit.
std::string system_text(const std::filesystem::path& path) {
  constexpr std::size_t kLimit = 8u << 20;
  std::string text;
  std::ifstream file(path);
  for (std::string line; text.size() < kLimit && std::getline(file, line);) text += line + '\n';
  return text;
}

template <std::size_t N>
std::vector<SimdFeature> find_features(const std::array<KnownFeature, N>& known, std::string_view flags) {
  std::vector<SimdFeature> features;
  features.reserve(N);
  for (const auto& feature : known) features.push_back({feature.name, has_word(flags, feature.flag)});
  return features;
}

std::string arm_model(std::string_view cpuinfo) {
  const auto implementer = value_of(cpuinfo, "CPU implementer");
  const auto part = value_of(cpuinfo, "CPU part");
  if (implementer == "0x41") {
    for (const auto& [code, name] : kArmParts) {
      if (part == code) return name;
    }
  }
  return part.empty() ? "" : fmt::format("ARM implementer {}, part {}", implementer, part);
}

}  // namespace

Processor parse_processor(std::string_view cpuinfo, std::string_view architecture) {
  Processor processor{std::string(value_of(cpuinfo, "model name")), std::string(architecture), {}};
  if (architecture == "x86_64") {
    processor.simd = find_features(kX86Features, value_of(cpuinfo, "flags"));
  } else if (architecture == "aarch64") {
    processor.simd = find_features(kArmFeatures, value_of(cpuinfo, "Features"));
    if (processor.model.empty()) processor.model = arm_model(cpuinfo);
  }
  return processor;
}

Memory parse_memory(std::string_view meminfo) {
  return {leading_number(value_of(meminfo, "MemTotal")).value_or(0) * 1024,
          leading_number(value_of(meminfo, "MemAvailable")).value_or(0) * 1024};
}

Processor this_processor() {
  utsname names{};
  const bool known = uname(&names) == 0;
  return parse_processor(system_text("/proc/cpuinfo"), known ? names.machine : "");
}

Memory this_memory() {
  auto memory = parse_memory(system_text("/proc/meminfo"));
  for (const char* limit_file : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    if (const auto limit = leading_number(system_text(limit_file))) {
      memory.total = std::min(memory.total, *limit);
      memory.available = std::min(memory.available, *limit);
    }
  }
  return memory;
}

std::uint64_t peak_resident_memory() {
  return leading_number(value_of(system_text("/proc/self/status"), "VmHWM")).value_or(0) * 1024;
}

std::uint64_t last_level_cache() {
  std::uint64_t largest = 0;
  for (int index = 0; index < 8; ++index) {
    const auto text = system_text(fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/size", index));
    if (const auto kilobytes = leading_number(text)) largest = std::max(largest, *kilobytes * 1024);
  }
  return largest;
}

std::vector<std::string> nvidia_gpus() {
  std::vector<std::string> names;
  std::error_code status;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/driver/nvidia/gpus", status)) {
    const auto information = system_text(entry.path() / "information");
    names.emplace_back(value_of(information, "Model"));
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace essh
