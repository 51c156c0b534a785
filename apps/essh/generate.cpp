#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iostream>
#include <memory>

#include "apps/essh/device_options.h"
#include "apps/essh/verbs.h"
#include "essh/base/file.h"
#include "essh/base/json.h"
#include "essh/base/log.h"
#include "essh/base/units.h"
#include "essh/decode/sampler.h"
#include "essh/decode/session.h"
#include "essh/store/run_folder.h"
#include "essh/text/tokenizer.h"

namespace essh::verbs {
namespace {
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct Options {
  std::string model, tier = "full", prompt, prompt_file, tokenizer, state_in, state_out;
  std::vector<std::int32_t> tokens;
  std::int64_t max_tokens = 128;
  SamplingOptions sampling;
  DeviceOptions device;
  bool bytes = false, ids = false, ignore_eos = false, json = false;
};

// How text becomes tokens: the folder's tokenizer, one named by the user, or raw bytes.
std::unique_ptr<Tokenizer> find_tokenizer(const Options& o) {
  if (o.bytes) return make_byte_tokenizer();
  if (!o.tokenizer.empty()) return load_tokenizer(o.tokenizer);
  if (fs::exists(fs::path(o.model) / "tokenizer.json")) return load_tokenizer(o.model);
  return nullptr;
}

std::string read_prompt(const Options& o) {
  if (o.prompt_file.empty()) return o.prompt;
  constexpr std::uint64_t kLimit = std::uint64_t{1} << 30;
  if (o.prompt_file != "-") return read_text(o.prompt_file, kLimit);
  return {std::istreambuf_iterator<char>(std::cin), {}};
}

std::vector<std::int32_t> prompt_tokens(const Options& o, const ModelConfig& config, const Tokenizer* tokenizer) {
  if (!o.tokens.empty()) return o.tokens;
  const auto text = read_prompt(o);
  if (!text.empty() && tokenizer == nullptr) {
    fail(ErrorKind::Usage, "generate: {} has no tokenizer.json; give --tokenizer FILE, --tokens 1,2,3 or --bytes",
         o.model);
  }
  auto tokens = tokenizer ? tokenizer->encode(text, {.add_special_tokens = true}) : std::vector<std::int32_t>{};
  if (tokens.empty() && o.state_in.empty()) tokens = {static_cast<std::int32_t>(config.bos_token_id)};
  return tokens;
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void run(Options o) {
  o.model = model_of_run(o.model).string();
  OpenDevice device(o.device);
  Engine engine(StoredModel::open(o.model), device.stream, o.device.engine());
  const auto tier = find_tier(engine.config(), o.tier);
  const auto tokenizer = find_tokenizer(o);
  Session session(engine, tier);
  if (!o.state_in.empty()) session.restore(o.state_in);
  const auto prompt = prompt_tokens(o, engine.config(), tokenizer.get());

  const auto prefill_start = Clock::now();
  session.feed(prompt);
  const double prefill = seconds_since(prefill_start);
  Sampler sampler(o.sampling);
  for (const auto token : prompt) sampler.see(token);

  const bool show_text = tokenizer && !o.ids && !o.json;
  std::unique_ptr<StreamDecoder> decoder = tokenizer ? std::make_unique<StreamDecoder>(*tokenizer) : nullptr;
  std::vector<std::int32_t> out;
  std::string text;
  const auto decode_start = Clock::now();
  while (static_cast<std::int64_t>(out.size()) < o.max_tokens) {
    const auto token = sampler.draw(session.logits());
    if (token == engine.config().eos_token_id && !o.ignore_eos) break;
    out.push_back(token);
    sampler.see(token);
    // A vocabulary padded beyond the tokenizer's has ids that stand for nothing.
    const auto piece = decoder && token < tokenizer->vocab_size() ? decoder->add(token) : std::string();
    if (show_text) {
      fmt::print("{}", piece);
      std::fflush(stdout);
    }
    text += piece;
    session.feed({&token, 1});
  }
  const double decode = seconds_since(decode_start);
  if (decoder) {
    const auto rest = decoder->flush();
    text += rest;
    if (show_text) fmt::print("{}\n", rest);
  }
  if (!o.json && !show_text) fmt::print("{}\n", fmt::join(out, " "));
  if (!o.state_out.empty()) session.save(o.state_out);

  const double prefill_rate = static_cast<double>(prompt.size()) / prefill,
               decode_rate = static_cast<double>(out.size()) / decode;
  if (o.json) {
    Json result = {
        {"model", o.model}, {"tier", session.tier().name}, {"prompt_tokens", prompt.size()}, {"tokens", out}};
    if (tokenizer) result["text"] = text;
    result["prefill_tokens_per_second"] = prefill_rate;
    result["decode_tokens_per_second"] = decode_rate;
    result["state_bytes"] = session.state_bytes();
    fmt::print("{}\n", to_text(result, 2));
  } else {
    std::fflush(stdout);  // the text first
    log::info("{}: prompt {} tokens at {:.0f}/s, {} tokens at {:.1f}/s, state {}", session.tier().name, prompt.size(),
              prefill_rate, out.size(), decode_rate, format_bytes(static_cast<double>(session.state_bytes())));
  }
}

}  // namespace

void add_generate(CLI::App& app) {
  auto* verb = app.add_subcommand("generate", "continue a text");
  auto o = std::make_shared<Options>();
  verb->add_option("MODEL", o->model, "a model folder or a run")->required();
  auto* prompt = verb->add_option("-p,--prompt", o->prompt, "the text to continue");
  auto* file =
      verb->add_option("-f,--prompt-file", o->prompt_file, "the text to continue from a file, or - for standard input")
          ->excludes(prompt);
  verb->add_option("--tokens", o->tokens, "token ids instead of text, e.g. 1,2,3")
      ->delimiter(',')
      ->excludes(prompt)
      ->excludes(file);
  verb->add_option("--tier", o->tier, "T4, full, xi=0.3 or 18x1792")->capture_default_str();
  verb->add_option("-n,--max-tokens", o->max_tokens, "stop after this many")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40))
      ->capture_default_str();
  verb->add_option("--temperature", o->sampling.temperature, "0 takes the most likely token")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  verb->add_option("--top-k", o->sampling.top_k, "draw among the k most likely; 0 for all")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  verb->add_option("--top-p", o->sampling.top_p, "draw among the most likely that together reach p")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  verb->add_option("--min-p", o->sampling.min_p, "drop tokens less likely than this share of the most likely")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  verb->add_option("--repetition-penalty", o->sampling.repetition_penalty,
                   "divides the logits of recent tokens; 1 is off")
      ->check(CLI::Range(0.01, 100.0))
      ->capture_default_str();
  verb->add_option("--seed", o->sampling.seed, "same seed, same text")->capture_default_str();
  verb->add_option("--tokenizer", o->tokenizer, "a tokenizer.json, when the folder has none");
  verb->add_flag("--bytes", o->bytes, "tokens are raw bytes");
  verb->add_flag("--ids", o->ids, "print token ids instead of text");
  verb->add_flag("--ignore-eos", o->ignore_eos, "go on after the end-of-text token");
  verb->add_option("--state-in", o->state_in, "start from a saved state")->check(CLI::ExistingFile);
  verb->add_option("--state-out", o->state_out, "save the state at the end");
  o->device.add_to(*verb);
  verb->add_flag("--json", o->json, "print JSON");
  verb->footer(
      "Example: essh generate exports/T4 --prompt \"Once upon a time\" --temperature 0.8 --top-p 0.95 --seed 7");
  verb->callback([o] { run(*o); });
}

}  // namespace essh::verbs
