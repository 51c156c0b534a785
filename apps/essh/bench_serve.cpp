#include <fmt/format.h>

#include <filesystem>
#include <future>
#include <memory>
#include <thread>

#include "apps/essh/bench_model.h"
#include "apps/essh/device_options.h"
#include "apps/essh/number_option.h"
#include "essh/base/json.h"
#include "essh/base/progress.h"
#include "essh/base/units.h"
#include "essh/evaluate/throughput.h"
#include "essh/serve/api.h"
#include "essh/serve/load_client.h"
#include "essh/store/provenance.h"

namespace essh::verbs {
namespace {
namespace fs = std::filesystem;

struct BenchServeOptions {
  std::string target, tier, output = "md", cache = "256MiB";
  std::vector<Index> concurrencies = {1, 16}, prompts = {128}, outputs = {64};
  serve::LoadOptions load = {.requests = 0};
  DeviceOptions device;
  bool json = false, whole = false;
};

// A letter for every id of a model without a tokenizer, so that each token is one event of a stream.
class LetterTokenizer final : public Tokenizer {
 public:
  explicit LetterTokenizer(std::int64_t size) : size_(size) {}
  using Tokenizer::encode;
  void encode(std::string_view text, std::vector<TokenId>& ids, EncodeOptions) const override {
    for (const char c : text) ids.push_back(static_cast<TokenId>(static_cast<unsigned char>(c) % size_));
  }
  std::int64_t vocab_size() const override { return size_; }
  std::string_view token_bytes(TokenId id) const override {
    check_id(id);
    return "x";
  }
  bool is_special(TokenId) const override { return false; }
  std::optional<TokenId> token_id(std::string_view) const override { return std::nullopt; }
  std::string to_json() const override { return "{}"; }

 private:
  std::int64_t size_;
};

// Serves this model from this process during the object's lifetime.
class OwnServer {
 public:
  explicit OwnServer(const BenchServeOptions& o)
      : device_(o.device), engine_(open_bench_model(o.target), device_.stream, o.device.engine()) {
    const auto folder = fs::is_directory(o.target) ? model_of_run(o.target) : fs::path();
    const bool own = !folder.empty() && fs::exists(folder / "tokenizer.json");
    tokenizer_ = own ? load_tokenizer(folder) : std::make_unique<LetterTokenizer>(engine_.config().vocab_size);
    const auto most = std::ranges::max(o.concurrencies);
    // As many slots as streams: measures the batch, not the queue.
    scheduler_ = std::make_unique<serve::Scheduler>(
        engine_,
        serve::SchedulerOptions{
            .max_slots = most, .max_queue = most, .cache_bytes = parse_bytes(o.cache, "bench serve: --cache")},
        metrics_);
    const std::string tier = o.tier.empty() ? "full" : o.tier;
    serve::ApiOptions options{.folder = folder, .name = "model", .tier = tier};
    options.limits.max_tokens = std::max<Index>(options.limits.max_tokens, std::ranges::max(o.outputs));
    api_ = std::make_unique<serve::Api>(std::move(options), engine_, *tokenizer_, *scheduler_, metrics_);
    const auto prepared =
        folder.empty() ? find_tier(engine_.config(), tier) : find_tier(folder, engine_.config(), tier);
    scheduler_->prepare(std::span(&prepared, 1));
    http_.port = 0;
    http_.max_connections = 2 * most + 64;
    http_.drain_seconds = 0;
    std::promise<int> listening;
    auto ready = listening.get_future();
    thread_ = std::jthread([this, &listening](const std::stop_token& stop) {
      bool told = false;
      try {
        serve::serve_http(
            http_, *api_,
            [&](int number) {
              told = true;
              listening.set_value(number);
            },
            stop);
      } catch (...) {
        if (!told) listening.set_exception(std::current_exception());
      }
    });
    port = ready.get();
  }
  std::string describe() { return device_.stream.description(); }
  Index vocabulary() const { return engine_.config().vocab_size; }

  int port = 0;

 private:
  OpenDevice device_;
  Engine engine_;
  std::unique_ptr<Tokenizer> tokenizer_;
  serve::Metrics metrics_;
  std::unique_ptr<serve::Scheduler> scheduler_;
  std::unique_ptr<serve::Api> api_;
  serve::HttpOptions http_;
  std::jthread thread_;
};

Json quantiles(std::vector<float>& seconds) {
  Json values = Json::object();
  for (const int percent : {50, 90, 99})
    values[fmt::format("p{}", percent)] = 1e3 * serve::quantile(seconds, 0.01 * percent);
  return values;
}

Json measure(const BenchServeOptions& o, const std::string& device) {
  auto load = o.load;
  if (load.requests == 0) load.requests = std::max<Index>(32, 4 * load.concurrency);
  load.stream = !o.whole;
  // Uncounted: the first requests of each stream, which all come and go together.
  auto warm = load;
  warm.requests = std::min(load.requests, 4 * load.concurrency);
  warm.output_tokens = std::min<Index>(16, load.output_tokens);
  warm.seed = load.seed + 1;
  warm.cancel = 0;
  serve::run_load(warm);
  Progress progress(fmt::format("{} streams, {} + {} tokens", load.concurrency, load.prompt_tokens, load.output_tokens),
                    static_cast<double>(load.requests), "requests");
  auto result = serve::run_load(load, [&](std::int64_t done) { progress.update(static_cast<double>(done)); });
  progress.finish();
  Json failures = Json::object();
  for (const auto& [why, count] : result.failures) failures[why] = count;
  const auto rate = [&](std::int64_t count) { return static_cast<double>(count) / result.seconds; };
  return {{"target", o.target},
          {"device", device},
          {"tier", o.tier},
          {"concurrency", load.concurrency},
          {"n_prompt", load.prompt_tokens},
          {"n_gen", load.output_tokens},
          {"requests", load.requests},
          {"completed", result.completed},
          {"cancelled", result.cancelled},
          {"failed", result.failed},
          {"failures", std::move(failures)},
          {"seconds", result.seconds},
          {"requests_per_second", rate(result.completed)},
          {"output_tokens_per_second", rate(result.output_tokens)},
          {"prompt_tokens_per_second", rate(result.prompt_tokens)},
          {"cached_tokens", result.cached_tokens},
          {"first_token_ms", quantiles(result.first)},
          {"between_tokens_ms", quantiles(result.between)},
          {"request_ms", quantiles(result.whole)},
          {"health_ms", quantiles(result.health)}};
}

void print_load_markdown(const Json& lines) {
  fmt::print(
      "| streams | prompt | output | requests | failed | requests/s | tokens/s | first token ms p50/p90/p99 | between "
      "tokens ms p50/p90/p99 | /health ms p99 |\n");
  fmt::print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n");
  const auto times = [](const Json& line, const char* key) {
    const auto& q = line[key];
    return fmt::format("{:.2f}/{:.2f}/{:.2f}", q["p50"].get<double>(), q["p90"].get<double>(), q["p99"].get<double>());
  };
  for (const auto& line : lines) {
    fmt::print("| {} | {} | {} | {} | {} | {:.1f} | {:.1f} | {} | {} | {:.2f} |\n", line["concurrency"].get<Index>(),
               line["n_prompt"].get<Index>(), line["n_gen"].get<Index>(), line["requests"].get<Index>(),
               line["failed"].get<Index>(), line["requests_per_second"].get<double>(),
               line["output_tokens_per_second"].get<double>(), times(line, "first_token_ms"),
               times(line, "between_tokens_ms"), line["health_ms"]["p99"].get<double>());
  }
}

void print_load_csv(const Json& lines) {
  const std::vector<std::string> plain = {"target",
                                          "device",
                                          "tier",
                                          "concurrency",
                                          "n_prompt",
                                          "n_gen",
                                          "requests",
                                          "completed",
                                          "cancelled",
                                          "failed",
                                          "seconds",
                                          "requests_per_second",
                                          "output_tokens_per_second",
                                          "prompt_tokens_per_second",
                                          "cached_tokens"};
  const std::vector<std::string> spread = {"first_token_ms", "between_tokens_ms", "request_ms", "health_ms"};
  std::vector<std::string> cells = plain;
  for (const auto& name : spread) {
    for (const char* share : {"p50", "p90", "p99"}) cells.push_back(fmt::format("{}_{}", name, share));
  }
  fmt::print("{}\n", fmt::join(cells, ","));
  for (const auto& line : lines) {
    cells.clear();
    for (const auto& key : plain) cells.push_back(csv_cell(line[key]));
    for (const auto& name : spread) {
      for (const char* share : {"p50", "p90", "p99"}) cells.push_back(csv_cell(line[name][share]));
    }
    fmt::print("{}\n", fmt::join(cells, ","));
  }
}

void run(BenchServeOptions o) {
  if (!serve::can_serve()) {
    fail(ErrorKind::Unsupported,
         "bench serve: this build has no Boost 1.74 or later (libboost-dev); install it and build again");
  }
  if (o.json) o.output = "json";
  std::unique_ptr<OwnServer> own;
  std::string device;
  if (o.target.find("://") != std::string::npos) {
    o.load.address = serve::parse_address(o.target);
    if (!o.tier.empty() && o.load.model.empty())
      fail(ErrorKind::Usage, "bench serve: --tier of a server needs --model NAME, its model's name");
    if (!o.tier.empty()) o.load.model += "@" + o.tier;
    serve::http_get(o.load.address, "/health", o.load.key);
  } else {
    own = std::make_unique<OwnServer>(o);
    device = own->describe();
    o.load.address = {.host = "127.0.0.1", .port = own->port};
    o.load.vocabulary = std::min(o.load.vocabulary, own->vocabulary());
  }
  Json lines = Json::array();
  for (const Index prompt : o.prompts) {
    for (const Index output : o.outputs) {
      for (const Index concurrency : o.concurrencies) {
        o.load.prompt_tokens = prompt;
        o.load.output_tokens = output;
        o.load.concurrency = concurrency;
        lines.push_back(measure(o, device));
      }
    }
  }
  if (o.output == "json")
    fmt::print("{}\n", to_text(lines, 2));
  else if (o.output == "csv")
    print_load_csv(lines);
  else
    print_load_markdown(lines);
  for (const auto& line : lines) {
    if (line["failed"].get<Index>() == 0) continue;
    fail(ErrorKind::Device, "bench serve: {} of {} requests failed: {}", line["failed"].get<Index>(),
         line["requests"].get<Index>(), to_text(line["failures"]));
  }
}

}  // namespace

void add_bench_serve(Verb& verb) {
  auto o = std::make_shared<BenchServeOptions>();
  auto* kind = verb.add_subcommand("serve", "requests of many clients, to a server or to a model served for it");
  kind->add_option("TARGET", o->target, "http://HOST:PORT, or a model folder, a run, or a preset with initial weights")
      ->required();
  o->device.add_to(*kind);
  o->device.add_deterministic(*kind);
  add_number(*kind, "-c,--concurrency", o->concurrencies, "streams at once", 1, 1 << 16)
      ->delimiter(',')
      ->capture_default_str();
  add_number(*kind, "-p,--n-prompt", o->prompts, "tokens of a prompt", 1, 1 << 24)
      ->delimiter(',')
      ->capture_default_str();
  add_number(*kind, "-n,--n-gen", o->outputs, "tokens of an answer", 1, 1 << 24)->delimiter(',')->capture_default_str();
  add_number(*kind, "--requests", o->load.requests, "in all; 0: 4 for each stream, and 32 at least", 0, Index{1} << 40)
      ->capture_default_str();
  kind->add_option("--tier", o->tier, "T4, full, xi=0.3 or 18x1792 (default: the server's)");
  kind->add_option("--model", o->load.model, "the model's name in requests to a URL");
  kind->add_option("--api-key", o->load.key, "for a URL");
  add_number(*kind, "--vocabulary", o->load.vocabulary, "prompts are random token ids below it", 1, 1 << 24)
      ->capture_default_str();
  add_number(*kind, "--cancel", o->load.cancel, "share of requests whose client leaves before the end", 0, 1)
      ->capture_default_str();
  add_seed(*kind, o->load.seed, "of the prompts");
  kind->add_option("--cache", o->cache, "as of `essh serve`, for a model served for it")->capture_default_str();
  kind->add_flag("--no-stream", o->whole, "whole replies; the first token is the reply");
  kind->add_option("-o,--output", o->output, "md, json or csv")->one_of({"md", "json", "csv"})->capture_default_str();
  kind->add_flag("--json", o->json, "print JSON");
  kind->callback([o] { run(*o); });
  kind->footer(
      "Before each row, up to four requests for each stream, with at most 16 tokens of answer, run uncounted.\n"
      "Examples: essh bench serve models/tiny -c 1,16,128 -p 128 -n 64\n"
      "          essh bench serve http://localhost:8080 -c 512 --requests 4096 -o json");
}

}  // namespace essh::verbs
