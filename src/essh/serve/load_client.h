#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

// Load on a server of the OpenAI API, and what it takes: any number of connections from one thread.
namespace essh::serve {

struct ServerAddress {
  std::string host = {};
  int port = 80;
  std::string prefix = {};  // of the paths, without a slash at its end
};
// "http://localhost:8080" or "http://localhost:8080/v1".
ServerAddress parse_address(const std::string& url);

struct LoadOptions {
  ServerAddress address = {};
  std::string model = {}, key = {};
  std::int64_t concurrency = 1;
  std::int64_t requests = 32;
  std::int64_t prompt_tokens = 128, output_tokens = 64;
  std::int64_t vocabulary = 256;  // prompts are random ids below it
  bool stream = true;
  double cancel = 0;  // share of requests whose client leaves before the end
  double temperature = 0;
  std::uint64_t seed = 1;
};

struct LoadResult {
  double seconds = 0;
  std::int64_t completed = 0, cancelled = 0, failed = 0;
  std::int64_t prompt_tokens = 0, output_tokens = 0, cached_tokens = 0;  // as the replies count them
  // Seconds: from the request to its first event, from one event to the next, to the end; of GET /health meanwhile.
  std::vector<float> first, between, whole, health;
  std::map<std::string, std::int64_t> failures = {};  // by what came instead
};

// `progress` hears how many requests have ended.
LoadResult run_load(const LoadOptions& options, const std::function<void(std::int64_t)>& progress = {});

// The value below which this share of the samples lies; 0 without samples. Sorts them.
double quantile(std::vector<float>& samples, double share);

// The body of GET path, or an Error.
std::string http_get(const ServerAddress& address, const std::string& path, const std::string& key = {});

}  // namespace essh::serve
