#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "apps/essh/verbs.h"
#include "essh/base/build_info.h"
#include "essh/base/json.h"
#include "essh/base/machine.h"
#include "essh/base/memory_reader.h"
#include "essh/base/units.h"

namespace essh::verbs {
namespace {

struct Report {
  Processor processor;
  int cores = 0;
  Memory memory;
  std::filesystem::path folder;
  std::uint64_t disk_free = 0;  // 0 if unknown
  std::vector<std::string> gpus;
  ReadBandwidth reads;
};

Report examine() {
  Report report;
  report.processor = this_processor();
  report.cores = available_cores();
  report.memory = this_memory();
  std::error_code status;
  report.folder = std::filesystem::current_path(status);
  const auto space = std::filesystem::space(".", status);
  if (!status) report.disk_free = space.available;
  report.gpus = nvidia_gpus();
  ThreadPool pool(report.cores);
  report.reads = measure_read_bandwidth(pool);
  return report;
}

Json to_json(const Report& report) {
  Json simd = Json::object();
  for (const auto& feature : report.processor.simd) simd[feature.name] = feature.present;
  Json libraries = Json::array();
  for (const auto& library : build::kLibraries) {
    libraries.push_back({{"name", library.name},
                         {"found", library.found},
                         {"version", library.found ? Json(library.version) : Json(nullptr)},
                         {"feature", library.feature}});
  }
  return {{"version", ESSH_VERSION},
          {"compiler", build::kCompiler},
          {"build_type", build::kBuildType},
          {"sanitizers", build::kSanitizers},
          {"processor",
           {{"model", report.processor.model},
            {"architecture", report.processor.architecture},
            {"cores", report.cores},
            {"simd", simd}}},
          {"memory", {{"total_bytes", report.memory.total}, {"available_bytes", report.memory.available}}},
          {"disk", {{"folder", report.folder.string()}, {"free_bytes", report.disk_free}}},
          {"read_bandwidth", report.reads.bytes_per_second},
          {"read_bandwidth_bytes", report.reads.bytes},
          {"read_bandwidth_threads", report.cores},
          {"gpus", report.gpus},
          {"libraries", libraries}};
}

std::string or_unknown(const std::string& text) {
  return text.empty() ? "unknown" : text;
}

std::string bytes_or_unknown(std::uint64_t bytes) {
  return bytes == 0 ? "unknown" : format_bytes(static_cast<double>(bytes));
}

std::string names(const std::vector<SimdFeature>& features, bool present) {
  std::vector<std::string> chosen;
  for (const auto& feature : features) {
    if (feature.present == present) chosen.push_back(feature.name);
  }
  return fmt::format("{}", fmt::join(chosen, ", "));
}

void print(const Report& report) {
  const auto line = [](const char* title, const std::string& text) { fmt::print("{:<12}{}\n", title, text); };
  line("essh", fmt::format("{}, {} build by {}{}{}", ESSH_VERSION, build::kBuildType, build::kCompiler,
                           *build::kSanitizers ? ", sanitizers: " : "", build::kSanitizers));
  line("processor",
       fmt::format("{} ({}), {} {} usable", or_unknown(report.processor.model),
                   or_unknown(report.processor.architecture), report.cores, report.cores == 1 ? "core" : "cores"));
  const auto missing = names(report.processor.simd, false);
  line("SIMD", or_unknown(names(report.processor.simd, true)));
  if (!missing.empty()) line("  missing", missing);
  line("memory", fmt::format("{}, {} available", bytes_or_unknown(report.memory.total),
                             bytes_or_unknown(report.memory.available)));
  line("reads", report.reads.bytes == 0
                    ? "not measured: too little memory"
                    : fmt::format("{}/s ({} threads over {})", format_bytes(report.reads.bytes_per_second),
                                  report.cores, format_bytes(static_cast<double>(report.reads.bytes))));
  line("disk", fmt::format("{} free in {}", bytes_or_unknown(report.disk_free), report.folder.string()));
  line("GPU", report.gpus.empty() ? "none found" : fmt::format("{}", fmt::join(report.gpus, ", ")));
  if (!report.gpus.empty() && !build::kCuda.found) {
    line("", "not used: this build has no CUDA; build with `cmake --preset cuda`");
  }
  fmt::print("\nlibraries of this build\n");
  for (const auto& library : build::kLibraries) {
    fmt::print("  {:<10}{:<9}{}\n", library.name, library.found ? library.version : "off", library.feature);
  }
}

}  // namespace

void add_doctor(Verb& app) {
  auto* verb = app.add_subcommand("doctor", "what this machine and this build can do");
  const auto json = std::make_shared<bool>(false);
  verb->add_flag("--json", *json, "the same as JSON, sizes in bytes");
  verb->footer("Example: essh doctor --json");
  verb->callback([json] {
    const auto report = examine();
    if (*json) {
      fmt::print("{}\n", to_text(to_json(report), 2));
    } else {
      print(report);
    }
  });
}

}  // namespace essh::verbs
