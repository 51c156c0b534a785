#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "apps/essh/device_options.h"
#include "essh/evaluate/frontier.h"

namespace essh::verbs {

// Options of the verbs that measure costs of capacities, and perplexity if there is a text.
struct MeasurementOptions {
  std::vector<std::filesystem::path> data;
  std::string tokenizer;
  std::int64_t context = kDefaultContext, windows = 0;
  LatencyOptions latency;
  DeviceOptions device;

  // `data_help` explains --data.
  void add_to(Verb& verb, const std::string& data_help);
  // A frontier without points, of measurements on this stream.
  Frontier begin(Stream& stream) const;
  // Measures the perplexity of these points of one model and names the text in the frontier. Returns its fingerprint.
  std::string add_perplexity(const StoredModel& stored, const std::filesystem::path& folder,
                             const std::vector<Tier>& tiers, Stream& stream, Frontier& frontier,
                             std::span<FrontierPoint> points) const;
};

}  // namespace essh::verbs
