#include <memory>

#include "apps/essh/device_options.h"
#include "apps/essh/number_option.h"
#include "apps/essh/verbs.h"
#include "essh/base/file.h"
#include "essh/base/log.h"
#include "essh/base/units.h"
#include "essh/serve/api.h"
#include "essh/store/provenance.h"
#include "essh/store/run_folder.h"

namespace essh::verbs {
namespace {
namespace fs = std::filesystem;

struct ServeOptions {
  std::string model, name, tier = "full", tokenizer, key_file, chat = "auto", frontier, max_body = "16MiB",
                           cache = "256MiB", states, state_quota = "1GiB";
  std::vector<std::string> keys, hosts;
  serve::HttpOptions http;
  serve::SchedulerOptions scheduler;
  serve::RequestLimits limits;
  DeviceOptions device;
  double max_latency_ms = 0;
  bool bytes = false, force = false, check = false, reduce_named = false;
};

std::unique_ptr<Tokenizer> find_tokenizer(const ServeOptions& o, const fs::path& folder) {
  if (o.bytes) return make_byte_tokenizer();
  if (!o.tokenizer.empty()) return load_tokenizer(o.tokenizer);
  if (!fs::exists(folder / "tokenizer.json"))
    fail(ErrorKind::Usage, "serve: {} has no tokenizer.json; give --tokenizer FILE or --bytes", folder.string());
  return load_tokenizer(folder);
}

// The name of a run or folder is the last component of its path.
std::string name_of(const ServeOptions& o) {
  if (!o.name.empty()) return o.name;
  const auto path = fs::weakly_canonical(fs::absolute(o.model));
  return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
}

// --api-key, and the non-empty lines of --api-key-file.
std::vector<std::string> read_keys(const ServeOptions& o) {
  auto keys = o.keys;
  if (!o.key_file.empty()) {
    const auto text = read_text(o.key_file, 1 << 20);
    for (std::size_t begin = 0; begin < text.size();) {
      const auto end = std::min(text.find('\n', begin), text.size());
      auto line = text.substr(begin, end - begin);
      if (line.ends_with('\r')) line.pop_back();
      if (!line.empty()) keys.push_back(std::move(line));
      begin = end + 1;
    }
    if (keys.empty()) fail(ErrorKind::BadFile, "{}: holds no key; write one per line", o.key_file);
  }
  for (const auto& key : keys) {
    if (key.empty()) fail(ErrorKind::Usage, "serve: an API key must not be empty");
  }
  return keys;
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

// Host names that a browser may use for this server. Beyond loopback any name is accepted unless some are given.
std::vector<std::string> allowed_hosts(const ServeOptions& o) {
  if (o.hosts.empty() && !is_loopback(o.http.host)) return {};
  std::vector<std::string> hosts = {"localhost", "127.0.0.1", "[::1]", o.http.host};
  hosts.insert(hosts.end(), o.hosts.begin(), o.hosts.end());
  for (auto& host : hosts) {
    for (auto& c : host) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return hosts;
}

// What a saved state's numbers are in.
std::string state_precision(const ServeOptions& o, const Engine& engine) {
  std::string name = engine.precision() == Precision::BFloat16 ? "bfloat16" : "float32";
  if (o.device.window_cache == "fp8") name += ", windows in fp8";
  if (o.device.state_dtype == "bf16") name += ", states in bf16";
  return name;
}

void run(ServeOptions o) {
  if (!serve::can_serve()) {
    fail(ErrorKind::Unsupported,
         "serve: this build has no Boost 1.74 or later (libboost-dev); install it and build again");
  }
  const auto folder = model_of_run(o.model);
  o.http.max_body = parse_bytes(o.max_body, "--max-body");
  constexpr std::uint64_t kMostBody = std::uint64_t{1} << 30;
  if (o.http.max_body < 1024 || o.http.max_body > kMostBody)
    fail(ErrorKind::Usage, "--max-body must be from 1024 to {} bytes", kMostBody);
  o.http.max_bodies = 16 * o.http.max_body;
  o.scheduler.cache_bytes = parse_bytes(o.cache, "--cache");
  // The frontier of the run, unless another is named.
  const auto of_run = fs::path(o.model) / kRunFrontier;
  const fs::path frontier = !o.frontier.empty() ? fs::path(o.frontier) : fs::exists(of_run) ? of_run : fs::path();
  serve::ApiOptions api{.folder = folder,
                        .name = name_of(o),
                        .tier = o.tier,
                        .keys = read_keys(o),
                        .hosts = allowed_hosts(o),
                        .limits = o.limits,
                        .max_body = o.http.max_body,
                        .frontier = frontier};
  if (o.device.mixed_tiers && o.device.deterministic)
    fail(ErrorKind::Usage, "serve: --mixed-tiers changes rounding with the texts beside a text; use one of the two");
  OpenDevice device(o.device);
  Engine engine(StoredModel::open(folder, o.force ? NonFinite::Accept : NonFinite::Refuse), device.stream,
                o.device.engine());
  const auto tokenizer = find_tokenizer(o, folder);
  api.chat = serve::choose_chat_template(o.chat, folder, *tokenizer);
  serve::Metrics metrics;
  const auto levels = serve::reduced_tiers(engine.config(), find_tier(folder, engine.config(), o.tier));
  serve::LatencyControl latency({.limit = 1e-3 * o.max_latency_ms}, levels.size());
  if (o.max_latency_ms > 0) o.scheduler.latency = api.latency = &latency;
  api.reduce_named = o.reduce_named;
  std::unique_ptr<serve::StateStore> states;
  if (!o.states.empty()) {
    states = std::make_unique<serve::StateStore>(
        serve::StateStoreOptions{.folder = o.states,
                                 .quota = parse_bytes(o.state_quota, "--state-quota"),
                                 .model = engine.model().hash(),
                                 .precision = state_precision(o, engine)});
    api.states = states.get();
  }
  serve::Scheduler scheduler(engine, o.scheduler, metrics);
  const bool open = api.keys.empty();
  const auto name = api.name;
  serve::Api handler(std::move(api), engine, *tokenizer, scheduler, metrics);
  if (open && !is_loopback(o.http.host))
    log::warn("serve: {} is reachable from other machines and no --api-key is set: anybody may ask", o.http.host);
  if (o.check) {
    fmt::print("{}: ready to serve at tier {}\n", name, o.tier);
    return;
  }
  // A smaller tier is needed when there is no time to prepare it.
  scheduler.prepare(o.max_latency_ms > 0 ? std::span(levels) : std::span(levels).first(1));
  serve::serve_http(o.http, handler, [&](int port) {
    const auto host = o.http.host.find(':') == std::string::npos ? o.http.host : "[" + o.http.host + "]";
    fmt::print("{} at tier {}: http://{}:{}/v1 (console: http://{}:{}/)\n", name, o.tier, host, port, host, port);
    std::fflush(stdout);
  });
}

}  // namespace

void add_serve(Verb& app) {
  auto* verb = app.add_subcommand("serve", "answer requests over HTTP as the OpenAI API does, at any tier");
  auto o = std::make_shared<ServeOptions>();
  verb->add_option("MODEL", o->model, "a model folder or a run")->required();
  verb->add_option("--host", o->http.host, "address to listen on; 0.0.0.0 for all")->capture_default_str();
  add_number(*verb, "--port", o->http.port, "0 takes a free one, which is printed", 0, 65535)->capture_default_str();
  verb->add_option("--tier", o->tier, "for requests that name none: T4, full, xi=0.3 or 18x1792")
      ->capture_default_str();
  verb->add_option("--name", o->name, "of the model in requests (default: its folder's)");
  verb->add_option("--api-key", o->keys,
                   "a key that clients must send; may be repeated; others see it in the process list")
      ->allow_extra_args(false);
  verb->add_option("--api-key-file", o->key_file, "a file with one key per line");
  verb->add_option("--allowed-host", o->hosts, "a name clients may use for this server; may be repeated")
      ->allow_extra_args(false);
  verb->add_option("--chat-template", o->chat, "auto, chatml or llama3")
      ->one_of({"auto", "chatml", "llama3"})
      ->capture_default_str();
  verb->add_option("--frontier", o->frontier,
                   "for the console's plot: a file of `essh frontier --json` (default: the run's)");
  add_number(*verb, "--max-slots", o->scheduler.max_slots, "texts computed together", 1, 1 << 20)
      ->capture_default_str();
  add_number(*verb, "--max-queue", o->scheduler.max_queue, "texts that may wait; more are answered with 429", 0,
             1 << 20)
      ->capture_default_str();
  verb->add_option("--cache", o->cache, "bytes of the device for states of known prompts; 0 computes every prompt anew")
      ->capture_default_str();
  add_number(*verb, "--prompt-piece", o->scheduler.prompt_piece,
             "most prompt tokens between two steps of the others; 0: as the device likes it", 0, 1 << 20)
      ->capture_default_str();
  add_number(
      *verb, "--prompt-wait", o->scheduler.prompt_wait,
      "most steps of the others that a prompt waits for more, to be read in one pass; -1: 16 on a GPU, 0 on a CPU", -1,
      1 << 20)
      ->capture_default_str();
  add_number(*verb, "--max-tokens", o->limits.max_tokens, "most tokens of one answer", 1, 1 << 30)
      ->capture_default_str();
  add_number(*verb, "--max-prompt-tokens", o->limits.prompt_tokens, "most tokens of one prompt", 1, 1 << 24)
      ->capture_default_str();
  verb->add_option("--max-body", o->max_body, "most bytes of one request")->capture_default_str();
  add_number(*verb, "--max-connections", o->http.max_connections, "more are answered with 503", 1, 1 << 20)
      ->capture_default_str();
  add_number(*verb, "--io-threads", o->http.threads, "threads for the connections that stream; one more answers GET", 1,
             64)
      ->capture_default_str();
  verb->add_option("--allow-states", o->states, "clients may save states, as files of this folder");
  verb->add_option("--state-quota", o->state_quota, "most bytes of saved states")->capture_default_str();
  add_number(*verb, "--max-latency", o->max_latency_ms,
             "ms between tokens; under more load requests without a tier get smaller ones; 0: never", 0, 1e6)
      ->capture_default_str();
  verb->add_flag("--reduce-named", o->reduce_named, "--max-latency also reduces tiers that requests name");
  add_number(*verb, "--header-timeout", o->http.header_seconds, "seconds for the head of a request", 0.01, 86400)
      ->capture_default_str();
  add_number(*verb, "--body-timeout", o->http.body_seconds, "seconds for the body of a request", 0.01, 86400)
      ->capture_default_str();
  add_number(*verb, "--keep-alive", o->http.keep_alive_seconds, "seconds between comments in a quiet stream", 0.01,
             86400)
      ->capture_default_str();
  add_number(*verb, "--idle-timeout", o->http.idle_seconds, "seconds a quiet connection stays open", 1, 86400)
      ->capture_default_str();
  add_number(*verb, "--stall-timeout", o->http.stall_seconds, "seconds a client may leave a reply unread", 1, 86400)
      ->capture_default_str();
  add_number(*verb, "--drain-timeout", o->http.drain_seconds, "seconds that running requests have after SIGTERM", 0,
             86400)
      ->capture_default_str();
  verb->add_option("--tokenizer", o->tokenizer, "a tokenizer.json, when the folder has none");
  verb->add_flag("--bytes", o->bytes, "tokens are raw bytes");
  o->device.add_to(*verb);
  o->device.add_state_formats(*verb);
  o->device.add_deterministic(*verb);
  o->device.add_mixed_tiers(*verb);
  verb->add_flag("--force", o->force, "run although weights are NaN or infinite");
  verb->add_flag("--check", o->check, "load the model, check the options and end");
  verb->footer(
      "Examples: essh serve models/tiny --port 8080\n"
      "          essh serve runs/tiny --tier T4 --max-slots 128");
  verb->callback([o] { run(*o); });
}

}  // namespace essh::verbs
