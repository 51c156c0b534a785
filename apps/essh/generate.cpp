#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <optional>

#include "apps/essh/device_options.h"
#include "apps/essh/number_option.h"
#include "apps/essh/output_file.h"
#include "apps/essh/standard_streams.h"
#include "apps/essh/verbs.h"
#include "essh/base/file.h"
#include "essh/base/interrupt.h"
#include "essh/base/json.h"
#include "essh/base/log.h"
#include "essh/base/units.h"
#include "essh/decode/sampler.h"
#include "essh/decode/session.h"
#include "essh/decode/speculation.h"
#include "essh/store/provenance.h"
#include "essh/store/run_folder.h"
#include "essh/text/stop_strings.h"
#include "essh/text/tokenizer.h"

namespace essh::verbs {
namespace {
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct GenerateOptions {
  std::string model, tier = "full", draft, prompt, prompt_file, tokenizer, state_in, state_out;
  std::vector<std::int32_t> tokens;
  std::vector<std::string> stops;
  std::int64_t max_tokens = 128;
  Index draft_tokens = 4;
  SamplingOptions sampling;
  DeviceOptions device;
  bool prompt_given = false, seed_given = false;
  bool bytes = false, ids = false, ignore_eos = false, force = false, echo = false, json = false;
};

// The folder's tokenizer, one named by the user, or raw bytes.
std::unique_ptr<Tokenizer> find_tokenizer(const GenerateOptions& o) {
  if (o.bytes) return make_byte_tokenizer();
  if (!o.tokenizer.empty()) return load_tokenizer(o.tokenizer);
  if (fs::exists(fs::path(o.model) / "tokenizer.json")) return load_tokenizer(o.model);
  return nullptr;
}

struct Prompt {
  std::string text = {};
  std::vector<std::int32_t> tokens = {};
};

Prompt read_prompt(const GenerateOptions& o, const ModelConfig& config, const Tokenizer* tokenizer) {
  if (!o.tokens.empty()) return {.tokens = o.tokens};
  Prompt prompt{.text = o.prompt};
  if (o.prompt_file == "-" || (o.prompt_file.empty() && !o.prompt_given && o.state_in.empty() && input_is_piped()))
    prompt.text = read_standard_input();
  else if (!o.prompt_file.empty())
    prompt.text = read_text(o.prompt_file, std::uint64_t{1} << 30);
  if (!prompt.text.empty() && tokenizer == nullptr) {
    fail(ErrorKind::Usage, "generate: {} has no tokenizer.json; give --tokenizer FILE, --tokens 1,2,3 or --bytes",
         o.model);
  }
  if (tokenizer) prompt.tokens = tokenizer->encode(prompt.text, {.add_special_tokens = true});
  if (prompt.tokens.empty() && o.state_in.empty()) prompt.tokens = {static_cast<std::int32_t>(config.bos_token_id)};
  return prompt;
}

double rate(std::size_t tokens, Clock::time_point start) {
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

// Streams text to standard output, unless the result is JSON. A pipe gets the bytes of the text.
class Writer {
 public:
  explicit Writer(bool shown) : shown_(shown), to_terminal_(output_is_terminal()) {}
  void write(const std::string& piece) {
    text_ += piece;
    if (!shown_ || piece.empty()) return;
    write_standard_output(to_terminal_ ? harmless(piece) : piece);
  }
  const std::string& text() const { return text_; }

 private:
  bool shown_, to_terminal_;
  std::string text_;
};

void run(GenerateOptions o) {
  check_output_file(o.state_out);
  o.model = model_of_run(o.model).string();
  OpenDevice device(o.device);
  Engine engine(StoredModel::open(o.model, o.force ? NonFinite::Accept : NonFinite::Refuse), device.stream,
                o.device.engine());
  const auto tier = find_tier(o.model, engine.config(), o.tier);
  const auto tokenizer = find_tokenizer(o);
  if (!tokenizer && !o.stops.empty())
    fail(ErrorKind::Usage, "generate: --stop needs text, and {} has no tokenizer.json; give --tokenizer FILE", o.model);
  Session session(engine, tier, {.rewind = o.draft.empty() ? 0 : o.draft_tokens});
  SamplerState before;
  if (!o.state_in.empty()) {
    before = session.restore(o.state_in);
    if (!o.seed_given) o.sampling.seed = before.seed;
  }
  std::optional<SpeculativeText> drafted;
  if (!o.draft.empty())
    drafted.emplace(session, find_tier(o.model, engine.config(), o.draft), SpeculationOptions{.most = o.draft_tokens});
  const auto prompt = read_prompt(o, engine.config(), tokenizer.get());

  // Without a file for the state there is nothing to save: a signal ends the program as usual.
  std::optional<InterruptScope> interrupt;
  if (!o.state_out.empty()) interrupt.emplace("stopping after this token, then saving the state");
  const auto prefill_start = Clock::now();
  if (drafted)
    drafted->feed(prompt.tokens);
  else
    session.feed(prompt.tokens);
  const double prefill_rate = rate(prompt.tokens.size(), prefill_start);
  Sampler sampler(o.sampling);
  sampler.resume(before);
  for (const auto token : prompt.tokens) sampler.see(token);

  Writer writer(tokenizer && !o.ids && !o.json);
  if (o.echo && tokenizer) writer.write(o.tokens.empty() ? prompt.text : tokenizer->decode(prompt.tokens));
  std::unique_ptr<StreamDecoder> decoder = tokenizer ? std::make_unique<StreamDecoder>(*tokenizer) : nullptr;
  StopStrings stops(o.stops);
  std::vector<std::int32_t> out;
  constexpr std::string_view kLength = "length";
  std::string_view finish = kLength;
  const auto decode_start = Clock::now();
  // False: the text ends before this token.
  const auto take = [&](std::int32_t token) {
    if (token == engine.config().eos_token_id && !o.ignore_eos) {
      finish = "eos";
      return false;
    }
    out.push_back(token);
    sampler.see(token);
    // A padded vocabulary has ids that the tokenizer does not know.
    if (decoder && token < tokenizer->vocab_size()) writer.write(stops.add(decoder->add(token)));
    if (stops.found()) finish = "stop";
    return true;
  };
  while (static_cast<std::int64_t>(out.size()) < o.max_tokens && finish == kLength) {
    if (interrupt && interrupt->requested()) {
      finish = "interrupted";
    } else if (drafted) {
      const auto found = drafted->next(sampler, o.max_tokens - std::ssize(out));
      Index kept = 0;
      while (kept < std::ssize(found) && finish == kLength && take(found[static_cast<std::size_t>(kept)])) ++kept;
      drafted->keep(kept);
    } else if (const auto token = sampler.draw(session.logits()); take(token)) {
      session.feed({&token, 1});
    }
  }
  const double decode_rate = rate(out.size(), decode_start);
  if (decoder) writer.write(stops.add(decoder->flush()) + stops.flush());
  if (drafted) drafted->feed({});
  if (!o.state_out.empty()) session.save(o.state_out, sampler.state());

  if (o.json) {
    Json result = {{"model", o.model}, {"tier", session.tier().name}, {"prompt_tokens", prompt.tokens.size()},
                   {"tokens", out},    {"finish_reason", finish},     {"seed", o.sampling.seed}};
    if (tokenizer) result["text"] = writer.text();
    result["prefill_tokens_per_second"] = prefill_rate;
    result["decode_tokens_per_second"] = decode_rate;
    result["state_bytes"] = session.state_bytes();
    if (drafted) {
      result["draft"] = {{"tier", o.draft},
                         {"acceptance", drafted->counts().acceptance()},
                         {"target_passes", drafted->counts().passes},
                         {"state_bytes", drafted->draft_state_bytes()}};
    }
    fmt::print("{}\n", to_text(result, 2));
  } else {
    if (tokenizer && !o.ids) {
      fmt::print("\n");
    } else {
      auto ids = o.echo ? prompt.tokens : std::vector<std::int32_t>{};
      ids.insert(ids.end(), out.begin(), out.end());
      fmt::print("{}\n", fmt::join(ids, " "));
    }
    std::fflush(stdout);  // text before the messages
    log::info("{}: prompt {} tokens at {:.0f}/s, {} tokens at {:.1f}/s, state {}, finished by {}", session.tier().name,
              prompt.tokens.size(), prefill_rate, out.size(), decode_rate,
              format_bytes(static_cast<double>(session.state_bytes())), finish);
    if (drafted) {
      log::info("{}: {:.0f} % of its drafts accepted, {} tokens in {} passes of {}", o.draft,
                100 * drafted->counts().acceptance(), out.size(), drafted->counts().passes, session.tier().name);
    }
  }
  if (finish == "interrupted")
    fail(ErrorKind::Interrupted, "generate: stopped after {} tokens; --state-in {} goes on", out.size(), o.state_out);
}

}  // namespace

void add_generate(Verb& app) {
  auto* verb = app.add_subcommand("generate", "continue a text");
  auto o = std::make_shared<GenerateOptions>();
  verb->add_option("MODEL", o->model, "a model folder or a run")->required();
  auto* prompt =
      verb->add_option("-p,--prompt", o->prompt, "the text to continue (default: standard input when it is a pipe)");
  auto* file =
      verb->add_option("-f,--prompt-file", o->prompt_file, "the text to continue from a file, or - for standard input")
          ->excludes(prompt);
  add_number(*verb, "--tokens", o->tokens, "token ids instead of text, e.g. 1,2,3", 0, INT32_MAX)
      ->delimiter(',')
      ->excludes(prompt)
      ->excludes(file);
  verb->add_option("--tier", o->tier, "T4, full, xi=0.3 or 18x1792")->capture_default_str();
  verb->add_option("--draft", o->draft, "a smaller tier drafts tokens that this one checks, several in a pass");
  add_number(*verb, "--draft-tokens", o->draft_tokens, "most tokens of a draft", 1, kMostDrafted)
      ->capture_default_str();
  add_number(*verb, "-n,--max-tokens", o->max_tokens, "stop after this many", 0, std::int64_t{1} << 40)
      ->capture_default_str();
  add_number(*verb, "--temperature", o->sampling.temperature, "0 takes the most likely token", 0, 100)
      ->capture_default_str();
  add_number(*verb, "--top-k", o->sampling.top_k, "draw among the k most likely; 0 for all", 0, 1 << 24)
      ->capture_default_str();
  add_number(*verb, "--top-p", o->sampling.top_p, "draw among the most likely that together reach p", 0, 1)
      ->capture_default_str();
  add_number(*verb, "--min-p", o->sampling.min_p, "drop tokens less likely than this share of the most likely", 0, 1)
      ->capture_default_str();
  add_number(*verb, "--repetition-penalty", o->sampling.repetition_penalty,
             "divides the logits of recent tokens; 1 is off", 0.01, 100)
      ->capture_default_str();
  auto* seed = add_seed(*verb, o->sampling.seed, "same seed, same text (default with --state-in: the saved one)");
  verb->add_option("--stop", o->stops, "end before this text; may be repeated")->allow_extra_args(false);
  verb->add_flag("--echo", o->echo, "print the prompt too");
  verb->add_option("--tokenizer", o->tokenizer, "a tokenizer.json, when the folder has none");
  verb->add_flag("--bytes", o->bytes, "tokens are raw bytes");
  verb->add_flag("--ids", o->ids, "print token ids instead of text");
  verb->add_flag("--force", o->force, "run although weights are NaN or infinite");
  verb->add_flag("--ignore-eos", o->ignore_eos, "go on after the end-of-text token");
  verb->add_option("--state-in", o->state_in, "start from a saved state")->existing_file();
  verb->add_option("--state-out", o->state_out, "save the state at the end, or on Ctrl-C");
  o->device.add_to(*verb);
  o->device.add_state_formats(*verb);
  verb->add_flag("--json", o->json, "print JSON");
  verb->footer(
      "Example: essh generate exports/T4 --prompt \"Once upon a time\" --temperature 0.8 --top-p 0.95 --seed 7");
  verb->callback([o, prompt, seed] {
    o->prompt_given = prompt->count() > 0;
    o->seed_given = seed->count() > 0;
    run(*o);
  });
}

}  // namespace essh::verbs
