#include "essh/data/prepare.h"

#include <fmt/core.h>

#include <charconv>
#include <memory>
#include <string>

#include "apps/essh/number_option.h"
#include "apps/essh/verbs.h"
#include "essh/base/error.h"
#include "essh/base/json.h"
#include "essh/base/log.h"
#include "essh/base/thread_pool.h"
#include "essh/base/units.h"
#include "essh/data/dataset.h"
#include "essh/text/tokenizer.h"

namespace essh::verbs {
namespace {

struct PrepareArguments {
  PrepareOptions options;
  std::string tokenizer;
  std::string format = "auto";
  std::string part = "1/1";
  std::int64_t sequence = 0;
  bool json = false;
};

// Text that looks like a special token stays text: only prepare places the end of text.
TextEncoder encoder_of(const Tokenizer& tokenizer, const std::string& place) {
  const auto eos = tokenizer.eos();
  if (!eos) {
    fail(ErrorKind::Usage,
         "{}: the tokenizer names no end-of-text token; give \"eos_token\" in a tokenizer_config.json beside it",
         place);
  }
  return {.format = {.tokenizer_hash = tokenizer.hash(), .vocab_size = tokenizer.vocab_size()},
          .eos_id = *eos,
          .encode = [&tokenizer](std::string_view text, std::vector<std::int32_t>& out) {
            tokenizer.encode(text, out, {.add_special_tokens = false, .parse_special_tokens = false});
          }};
}

void parse_part(std::string_view text, PrepareOptions& options) {
  const auto slash = text.find('/');
  const auto number = [](std::string_view digits, int& value) {
    const auto [stop, status] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return status == std::errc{} && stop == digits.data() + digits.size();
  };
  if (slash == std::string_view::npos || !number(text.substr(0, slash), options.part) ||
      !number(text.substr(slash + 1), options.parts)) {
    fail(ErrorKind::Usage, "--part must look like 2/4, got \"{}\"", text);
  }
}

Json summary(const SplitManifest& split, std::int64_t sequence) {
  Json object = {{"tokens", split.tokens},
                 {"documents", split.documents},
                 {"bytes", split.bytes},
                 {"shards", split.shards.size()}};
  if (sequence > 0) object["sequences"] = std::max<std::int64_t>(split.tokens - 1, 0) / sequence;
  return object;
}

void print(const PrepareArguments& arguments, const PrepareReport& report) {
  const auto& manifest = report.manifest;
  const double rate = report.seconds > 0 ? static_cast<double>(report.text_bytes) / report.seconds / 1e6 : 0;
  if (arguments.json) {
    const Json object = {{"folder", arguments.options.folder.string()},
                         {"already", report.already},
                         {"resumed", report.resumed},
                         {"train", summary(manifest.train, arguments.sequence)},
                         {"valid", summary(manifest.valid, arguments.sequence)},
                         {"bad_lines", manifest.bad_lines},
                         {"seconds", report.seconds},
                         {"text_mb_per_second", rate}};
    fmt::print("{}\n", to_text(object, 1));
    return;
  }
  if (report.already) fmt::print("{}: prepared already\n", arguments.options.folder.string());
  for (const auto& [name, split] : {std::pair{"train", &manifest.train}, {"valid", &manifest.valid}}) {
    fmt::print("{}  {:>9} tokens  {:>9} documents  {:>9} of text  {} shards", name,
               format_count(static_cast<double>(split->tokens)), format_count(static_cast<double>(split->documents)),
               format_bytes(static_cast<double>(split->bytes)), split->shards.size());
    if (arguments.sequence > 0) {
      fmt::print("  {} sequences of {}", std::max<std::int64_t>(split->tokens - 1, 0) / arguments.sequence,
                 arguments.sequence);
    }
    fmt::print("\n");
  }
  if (manifest.bad_lines > 0) fmt::print("{} bad lines were left out\n", manifest.bad_lines);
}

void run(PrepareArguments& arguments) {
  auto& options = arguments.options;
  parse_part(arguments.part, options);
  if (arguments.format != "auto") options.format = parse_format(arguments.format);
  const auto tokenizer = load_tokenizer(arguments.tokenizer);
  const auto report = prepare(options, encoder_of(*tokenizer, arguments.tokenizer));
  save_tokenizer(*tokenizer, options.folder);
  print(arguments, report);
}

}  // namespace

void add_prepare(Verb& app) {
  auto arguments = std::make_shared<PrepareArguments>();
  auto& options = arguments->options;
  options.threads = available_cores();
  auto* verb = app.add_subcommand("prepare", "text, JSONL, FASTA or Parquet into token shards for training");
  verb->add_option(
          "files", options.inputs,
          "files, folders (all files below, sorted), patterns, or - for standard input; gzip and zstd are unpacked")
      ->required();
  verb->add_option("-o,--output", options.folder, "folder of the dataset")->required();
  verb->add_option("--tokenizer", arguments->tokenizer,
                   "tokenizer.json, its folder, a tiktoken file, \"bytes\" or \"nucleotides\"")
      ->required();
  verb->add_option("--format", arguments->format, "of all files, instead of by their names")
      ->one_of({"auto", "text", "jsonl", "fasta", "parquet"})
      ->capture_default_str();
  verb->add_option("--field", options.field, "the JSONL field or Parquet column that holds the text")
      ->capture_default_str();
  const auto* valid_fraction =
      add_number(*verb, "--valid-fraction", options.valid_fraction,
                 "share of the text kept for validation; 0 when --holdout is given and this is not", 0, 1)
          ->capture_default_str();
  verb->add_option("--holdout", options.holdout,
                   "a FASTA record kept whole for validation, by the first word of its title; may be repeated")
      ->allow_extra_args(false);
  add_number(*verb, "--shard-tokens", options.shard_tokens, "tokens of a shard", 1, kMostTokens)->capture_default_str();
  add_number(*verb, "--seq", arguments->sequence, "count sequences of this length in the summary", 1,
             std::int64_t{1} << 40);
  verb->add_option("--part", arguments->part, "I/N: do share I of N; each machine does one, into the same folder")
      ->capture_default_str();
  verb->add_flag("--strict", options.strict, "stop at the first bad line");
  add_number(*verb, "--threads", options.threads, "threads that tokenise", 1, 4096)->capture_default_str();
  verb->add_flag("--json", arguments->json, "print the summary as JSON");
  verb->footer(
      "Documents of plain text stand between lines <|endoftext|>; a file without such lines is one document. Run the "
      "same\n"
      "command again after an interruption: it continues.\n"
      "Example: essh prepare GRCh38.fa -o data/genome --tokenizer nucleotides --holdout chr21\n"
      "Example: essh prepare corpus/*.jsonl.zst -o data --tokenizer tokenizer.json --field text");
  verb->callback([arguments, valid_fraction] {
    auto& chosen = arguments->options;
    if (!chosen.holdout.empty() && valid_fraction->count() == 0) chosen.valid_fraction = 0;
    run(*arguments);
  });
}

}  // namespace essh::verbs
