#include "apps/essh/device_options.h"

#include <cstdlib>
#include <filesystem>

#include "apps/essh/number_option.h"
#include "essh/comm/group.h"

namespace essh::verbs {
namespace fs = std::filesystem;
namespace {

// $XDG_CACHE_HOME/essh or ~/.cache/essh; empty without a home.
fs::path cache_folder() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache && *cache) return fs::path(cache) / "essh";
  if (const char* home = std::getenv("HOME"); home && *home) return fs::path(home) / ".cache" / "essh";
  return {};
}

// Each rank of a machine takes its own GPU, unless one is named.
DeviceChoice own_device(const std::string& name) {
  auto choice = parse_device(name);
  if (choice.device == Device::Cuda && name.find(':') == std::string::npos)
    choice.index = comm::local_rank() % static_cast<int>(gpu_names().size());
  return choice;
}

std::string file_name(const std::string& description) {
  std::string name = "tuned";
  for (const char c : description) name += std::isalnum(static_cast<unsigned char>(c)) ? c : '-';
  return name + ".json";
}

}  // namespace

void DeviceOptions::add_to(Verb& verb) {
  add_places(verb);
  verb.add_option("--precision", precision, "auto (bf16 on CUDA, float32 on the CPU), float32, bf16");
}

void DeviceOptions::add_places(Verb& verb) {
  auto* option = verb.add_option("--device", device, "cpu, cuda, cuda:N, or auto: a GPU when there is one");
  if (device != "auto") option->capture_default_str();
  add_number(verb, "--threads", threads, "cores to use (all by default)", 1, 4096);
}

void DeviceOptions::add_deterministic(Verb& verb) {
  verb.add_flag("--deterministic", deterministic,
                "on CUDA: the same bits whatever else runs beside a sequence, at some cost in speed");
}

void DeviceOptions::add_default_launches(Verb& verb) {
  verb.add_flag(
      "--default-launches", default_launches,
      "on CUDA: without the autotuned launch parameters of scan, attention and steps; the results are the same");
}

void DeviceOptions::add_mixed_tiers(Verb& verb) {
  verb.add_flag(
      "--mixed-tiers", mixed_tiers,
      "texts of several tiers advance in one pass of the largest, which reads the weights once for all of them, "
      "instead of in a pass for each tier; not with --deterministic");
}

void DeviceOptions::add_state_formats(Verb& verb) {
  verb.add_option("--window-cache", window_cache,
                  "keys and values of sliding windows: auto (the precision's), or fp8 with a scale per row and head, "
                  "which halves their memory, rounds them to four bits and is slower for few texts at once")
      ->one_of({"auto", "fp8"});
  verb.add_option("--state-dtype", state_dtype,
                  "recurrent states: float32, or bf16, which halves their memory and is slower for few texts at once")
      ->one_of({"float32", "bf16"});
}

OpenDevice::OpenDevice(const DeviceOptions& options)
    : stream(open_stream(own_device(options.device), options.threads > 0 ? options.threads : available_cores())) {
  stream.set_tunes_launches(!options.default_launches);
  stream.set_own_products(!options.cublas_products);
  const auto folder = cache_folder();
  if (stream.device() == Device::Cpu || folder.empty()) return;
  file_ = (folder / file_name(stream.description())).string();
  known_ = read_choices(file_);
  stream.choices() = known_;
}

OpenDevice::~OpenDevice() {
  if (!file_.empty() && stream.choices() != known_) write_choices(file_, stream.choices());
}

}  // namespace essh::verbs
