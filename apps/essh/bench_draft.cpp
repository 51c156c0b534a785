#include "apps/essh/bench_draft.h"

#include <fmt/format.h>

#include "apps/essh/number_option.h"
#include "essh/base/file.h"
#include "essh/base/json.h"
#include "essh/base/rng.h"
#include "essh/evaluate/speculation_rate.h"
#include "essh/store/provenance.h"
#include "essh/store/run_folder.h"
#include "essh/text/tokenizer.h"

namespace essh::verbs {
namespace {

// What is read before the tokens that are timed, enough for all repetitions where the file has it.
std::vector<std::int32_t> read_drafted_text(const DraftBenchOptions& options, const Engine& engine,
                                            const DraftedText& text) {
  if (options.text_file.empty()) {
    Rng rng(1);
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(text.depth));
    for (auto& token : tokens)
      token = static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(engine.config().vocab_size)));
    return tokens;
  }
  const auto tokens = load_tokenizer(model_of_run(text.model).string())
                          ->encode(read_text(options.text_file, std::uint64_t{1} << 30), {});
  if (std::ssize(tokens) < text.depth) {
    fail(ErrorKind::Usage, "bench decode: {} has {} tokens, fewer than --depth {}", options.text_file, tokens.size(),
         text.depth);
  }
  engine.model().check_tokens(tokens, options.text_file.c_str());
  return tokens;
}

}  // namespace

void DraftBenchOptions::add_to(Verb& verb) {
  verb.add_option("--draft", drafts, "with drafts of these smaller tiers, and without; several by commas")
      ->delimiter(',');
  add_number(verb, "--draft-tokens", tokens, "most tokens of a draft", 1, kMostDrafted)->capture_default_str();
  add_number(verb, "--temperature", temperature, "of --draft; 0 takes the most likely token", 0, 100)
      ->capture_default_str();
  verb.add_option("-f,--text", text_file, "text that --draft reads before (default: random tokens)")->existing_file();
}

std::vector<Json> measure_drafts(const DraftBenchOptions& options, Engine& engine, const Tier& tier,
                                 const DraftedText& text) {
  const auto tokens = read_drafted_text(options, engine, text);
  std::vector<Json> lines;
  for (const auto& name : options.drafts) {
    const auto draft = find_tier(model_of_run(text.model), engine.config(), name);
    const SpeculationBench bench{.draft_tokens = options.tokens,
                                 .depth = text.depth,
                                 .steps = text.steps,
                                 .repetitions = text.repetitions,
                                 .sampling = {.temperature = options.temperature, .seed = 1}};
    const auto rates = measure_speculation(engine, tier, draft, tokens, bench);
    lines.push_back(
        {{"draft", draft.name},
         {"draft_tokens", options.tokens},
         {"temperature", options.temperature},
         {"text", options.text_file},
         {"n_depth", text.depth},
         {"n_gen", text.steps},
         {"acceptance", rates.counts.acceptance()},
         {"drafted_per_pass", static_cast<double>(rates.counts.drafted) / static_cast<double>(rates.counts.passes)},
         {"tokens_per_pass", rates.tokens_per_pass()},
         {"plain_ms", rates.plain_median_ms()},
         {"draft_ms", rates.draft_median_ms()},
         {"speedup", rates.plain_median_ms() / rates.draft_median_ms()},
         {"samples_plain_ms", rates.plain_ms},
         {"samples_draft_ms", rates.draft_ms},
         {"draft_state_bytes", rates.draft_state_bytes}});
  }
  return lines;
}

void print_drafts(const Json& lines) {
  fmt::print(
      "| model | tier | draft | dtype | temperature | test | accepted | tokens a pass | ms plain | ms drafted | "
      "speedup |\n"
      "|---|---|---|---|---:|---:|---:|---:|---:|---:|---:|\n");
  for (const auto& line : lines) {
    const auto text = [&](const char* key) { return line[key].get<std::string>(); };
    const auto number = [&](const char* key) { return line[key].get<double>(); };
    fmt::print("| {} | {} | {} | {} | {} | tg{} @ d{} | {:.1f} % | {:.2f} | {:.3f} | {:.3f} | {:.2f} |\n",
               text("model"), text("tier"), text("draft"), text("dtype"), number("temperature"),
               line["n_gen"].get<Index>(), line["n_depth"].get<Index>(), 100 * number("acceptance"),
               number("tokens_per_pass"), number("plain_ms"), number("draft_ms"), number("speedup"));
  }
}

}  // namespace essh::verbs
