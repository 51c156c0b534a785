#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

// Load on an OpenAI-compatible server, with any number of connections from one thread.
namespace essh::serve {

struct ServerAddress {
  std::string host = {};
  int port = 80;
  std::string prefix = {};  // of all paths, without a trailing slash
};
// "http://localhost:8080" or "http://localhost:8080/v1".
ServerAddress parse_address(const std::string& url);

struct LoadOptions {
  ServerAddress address = {};
  std::string model = {}, key = {};
  std::int64_t concurrency = 1;
  std::int64_t requests = 32;
  std::int64_t prompt_tokens = 128, output_tokens = 64;
  std::int64_t vocabulary = 256;  // prompts are random ids below this
  bool stream = true;
  double cancel = 0;  // fraction of requests cancelled before the end
  double temperature = 0;
  std::uint64_t seed = 1;
};

struct LoadResult {
  double seconds = 0;
  std::int64_t completed = 0, cancelled = 0, failed = 0;
  std::int64_t prompt_tokens = 0, output_tokens = 0, cached_tokens = 0;  // as reported by the replies
  // Seconds from the request to its first event, between events, to the end, and of GET /health during the load.
  std::vector<float> first, between, whole, health;
  std::map<std::string, std::int64_t> failures = {};  // by status or error
};

// `progress` is called with the number of requests that have ended.
LoadResult run_load(const LoadOptions& options, const std::function<void(std::int64_t)>& progress = {});

// The given quantile; 0 without samples. Sorts the samples.
double quantile(std::vector<float>& samples, double share);

// The body of GET path, or an Error.
std::string http_get(const ServerAddress& address, const std::string& path, const std::string& key = {});

}  // namespace essh::serve
