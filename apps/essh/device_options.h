#pragma once
#include <string>

#include "apps/essh/command_line.h"
#include "essh/decode/engine.h"
#include "essh/device/stream.h"
#include "essh/store/tuned_file.h"

namespace essh::verbs {

// --device, --precision and --threads of a verb.
struct DeviceOptions {
  std::string device = "auto";
  std::string precision = "auto", window_cache = "auto", state_dtype = "float32";
  int threads = 0;
  bool deterministic = false, mixed_tiers = false, default_launches = false, cublas_products = false;

  void add_to(Verb& verb);
  // Without --precision, for verbs with a precision of their own.
  void add_places(Verb& verb);
  // --deterministic, for verbs that run several sequences at once.
  void add_deterministic(Verb& verb);
  // --default-launches, for verbs that measure.
  void add_default_launches(Verb& verb);
  Precision chosen_precision() const { return parse_precision(precision); }
  // --mixed-tiers, for verbs that serve several tiers at once.
  void add_mixed_tiers(Verb& verb);
  // --window-cache and --state-dtype, for verbs that decode.
  void add_state_formats(Verb& verb);
  EngineOptions engine() const {
    return {.precision = chosen_precision(),
            .deterministic = deterministic,
            .mixed_tiers = mixed_tiers,
            .fp8_windows = window_cache == "fp8",
            .bf16_states = state_dtype == "bf16"};
  }
};

// The stream that the options ask for. Choices autotuned on a GPU are cached in the user's cache folder, so that every
// process on one machine uses the same algorithms and gives the same bits.
class OpenDevice {
 public:
  explicit OpenDevice(const DeviceOptions& options);
  ~OpenDevice();
  OpenDevice(const OpenDevice&) = delete;
  OpenDevice& operator=(const OpenDevice&) = delete;

  Stream stream;

 private:
  std::string file_;
  TunedChoices known_;
};

}  // namespace essh::verbs
