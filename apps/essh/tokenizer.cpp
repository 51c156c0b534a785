#include "essh/text/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "apps/essh/number_option.h"
#include "apps/essh/output_file.h"
#include "apps/essh/standard_streams.h"
#include "apps/essh/verbs.h"
#include "essh/base/error.h"
#include "essh/base/file.h"
#include "essh/base/json.h"
#include "essh/base/log.h"
#include "essh/base/progress.h"
#include "essh/base/thread_pool.h"
#include "essh/base/units.h"
#include "essh/data/document_reader.h"
#include "essh/data/source_list.h"
#include "essh/text/bpe_trainer.h"

namespace essh::verbs {
namespace {

namespace fs = std::filesystem;

struct TrainArguments {
  std::vector<std::string> inputs;
  fs::path output;
  std::string format = "auto";
  std::string field = "text";
  bool force = false;
  BpeTrainingOptions options;
  std::uint64_t max_words = 10'000'000;
  int threads = available_cores();
  bool json = false;
};

// Counts the words of one source, read like `essh prepare` does.
void count_words(const SourceFile& source, const std::string& field, BpeWordCounter& counter,
                 std::uint64_t& bad_lines) {
  const auto reader = open_document_reader(source.path, parse_format(source.format), field);
  Block block;
  while (reader->read(block)) {
    decode_block(block, field);
    for (const auto& bad : block.bad_lines) {
      if (bad_lines == 0) log::warn("{}:{}: {}, skipped", source.path, bad.number, describe(bad.fault, field));
    }
    bad_lines += block.bad_count;
    for (const auto& piece : block.pieces)
      counter.add_text(std::string_view(block.text).substr(piece.begin, piece.size));
    block.clear();
  }
}

void train(const TrainArguments& arguments) {
  check_training_options(arguments.options);
  check_new_file(arguments.output, arguments.force);
  const auto format = arguments.format == "auto" ? std::nullopt : std::optional(parse_format(arguments.format));
  const auto files = find_sources(arguments.inputs, format, {});
  double total = 0;
  for (const auto& file : files) {
    total += static_cast<double>(file.size);
    std::error_code absent;
    if (fs::equivalent(file.path, arguments.output, absent))
      fail(ErrorKind::Usage, "{}: is read from; choose another name for the tokenizer", arguments.output.string());
  }
  BpeWordCounter counter(arguments.options.pattern, arguments.options.special_tokens, arguments.max_words,
                         arguments.threads);
  std::uint64_t bad_lines = 0;
  {
    Progress progress("counting words", total, "MB", 1e6);
    for (const auto& file : files) {
      count_words(file, arguments.field, counter, bad_lines);
      progress.update(static_cast<double>(counter.bytes()));
    }
    progress.finish();
  }
  if (bad_lines > 0) log::warn("{} bad lines were left out", bad_lines);
  const WordCounts words = counter.take();
  if (words.empty()) fail(ErrorKind::Usage, "the files hold no text to train on");
  if (counter.forgotten() > 0) {
    log::warn("{} rare words were dropped to hold at most {}; raise --max-words to count them all", counter.forgotten(),
              arguments.max_words);
  }
  const BpeTokenizer tokenizer(train_bpe(words, arguments.options), arguments.output.string());
  if (tokenizer.vocab_size() < arguments.options.vocab_size) {
    log::warn("the text gives only {} entries with pairs seen {} times or more", tokenizer.vocab_size(),
              arguments.options.min_frequency);
  }
  write_durably(arguments.output, tokenizer.to_json());
  if (arguments.json) {
    fmt::print("{}\n", to_text(Json{{"tokenizer", arguments.output.string()},
                                    {"vocab_size", tokenizer.vocab_size()},
                                    {"files", files.size()},
                                    {"bytes", counter.bytes()},
                                    {"distinct_words", words.size()},
                                    {"hash", tokenizer.hash()}}));
  } else {
    fmt::print("{}: {} entries from {} in {} files\n", arguments.output.string(), tokenizer.vocab_size(),
               format_bytes(static_cast<double>(counter.bytes())), files.size());
  }
}

struct EncodeArguments {
  fs::path tokenizer;
  EncodeOptions options;
  bool json = false;
  bool jsonl = false;
  int threads = 1;
};

void append_ids(fmt::memory_buffer& out, const std::vector<TokenId>& ids, bool json) {
  if (json) out.push_back('[');
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) out.push_back(json ? ',' : ' ');
    const fmt::format_int digits(ids[i]);
    out.append(digits.data(), digits.data() + digits.size());
  }
  if (json) out.push_back(']');
  out.push_back('\n');
}

// Encodes texts on several threads and accumulates the time, without reading and writing.
class TimedEncoder {
 public:
  explicit TimedEncoder(const EncodeArguments& arguments)
      : tokenizer_(load_tokenizer(arguments.tokenizer)), options_(arguments.options), pool_(arguments.threads) {}

  const std::vector<std::vector<TokenId>>& encode(const std::vector<std::string>& texts) {
    ids_.resize(texts.size());
    const auto start = std::chrono::steady_clock::now();
    const std::clock_t cpu_start = std::clock();
    pool_.each(static_cast<std::int64_t>(texts.size()), [&](std::int64_t index, int) {
      // A local vector avoids false sharing: every token updates the vector's end pointer, which would share a cache
      // line with another thread's.
      auto ids = std::move(ids_[static_cast<std::size_t>(index)]);
      ids.clear();
      tokenizer_->encode(texts[static_cast<std::size_t>(index)], ids, options_);
      ids_[static_cast<std::size_t>(index)] = std::move(ids);
    });
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    cpu_seconds_ += static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC;
    for (const std::string& text : texts) bytes_ += static_cast<double>(text.size());
    for (const auto& ids : ids_) tokens_ += static_cast<double>(ids.size());
    return ids_;
  }
  ~TimedEncoder() {
    log::detail(
        "encoded {:.0f} bytes to {:.0f} tokens in {:.6f} s ({:.6f} s of processor time), {:.1f} MB/s on {} threads",
        bytes_, tokens_, seconds_, cpu_seconds_, bytes_ / 1e6 / std::max(seconds_, 1e-9), pool_.threads());
  }

 private:
  std::unique_ptr<Tokenizer> tokenizer_;
  EncodeOptions options_;
  ThreadPool pool_;
  std::vector<std::vector<TokenId>> ids_;
  double seconds_ = 0;
  double cpu_seconds_ = 0;
  double bytes_ = 0;
  double tokens_ = 0;
};

void encode(const EncodeArguments& arguments) {
  constexpr std::size_t kBatchBytes = 16 << 20;
  TimedEncoder encoder(arguments);
  std::string input = read_standard_input();
  std::vector<std::string> texts;
  const auto encode_and_print = [&] {
    fmt::memory_buffer out;
    for (const auto& ids : encoder.encode(texts)) append_ids(out, ids, arguments.json || arguments.jsonl);
    write_standard_output({out.data(), out.size()});
    texts.clear();
  };
  if (!arguments.jsonl) {
    texts.push_back(std::move(input));
    return encode_and_print();
  }
  std::string_view rest = input;
  std::size_t batch_bytes = 0;
  for (std::size_t number = 1; !rest.empty(); ++number) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string place = fmt::format("standard input:{}", number);
    // One text per line, of any length: escapes make it up to six times as long.
    const Json line = parse_json(rest.substr(0, end), place, {.bytes = std::uint64_t{1} << 30});
    if (!line.is_string()) fail(ErrorKind::Usage, "{}: with --jsonl each line must be one JSON string", place);
    texts.push_back(line.get<std::string>());
    rest.remove_prefix(std::min(end + 1, rest.size()));
    batch_bytes += end;
    if (batch_bytes < kBatchBytes && !rest.empty()) continue;
    encode_and_print();
    batch_bytes = 0;
  }
}

// Ids as "[1, 2, 3]" or as "1 2 3".
std::vector<TokenId> parse_ids(std::string_view text) {
  std::vector<TokenId> ids;
  const auto skip = [&](std::string_view what) {
    text.remove_prefix(std::min(text.find_first_not_of(what), text.size()));
  };
  skip(" \t\r\n");
  const bool list = text.starts_with('[');
  if (list) text.remove_prefix(1);
  for (skip(" \t\r\n"); !text.empty() && text.front() != ']'; skip(list ? " \t\r\n," : " \t\r\n")) {
    TokenId id = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
    if (error != std::errc()) {
      fail(ErrorKind::Usage, "standard input: expected a token id at \"{}\"; give ids as [1, 2, 3] or as 1 2 3",
           text.substr(0, text.find_first_of(" \t\r\n", 1)).substr(0, 40));
    }
    ids.push_back(id);
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  }
  if (list != text.starts_with(']') ||
      text.substr(list ? 1 : 0).find_first_not_of(" \t\r\n") != std::string_view::npos) {
    fail(ErrorKind::Usage, "standard input: give ids as [1, 2, 3] or as 1 2 3");
  }
  return ids;
}

void add_training(Verb& app) {
  auto arguments = std::make_shared<TrainArguments>();
  auto* verb = app.add_subcommand("train", "learn a byte-level BPE vocabulary from text");
  verb->add_option("inputs", arguments->inputs,
                   "files, folders, patterns, or - for standard input; what `essh prepare` reads")
      ->required();
  verb->add_option("-o,--output", arguments->output, "the tokenizer.json to write")->required();
  verb->add_option("--format", arguments->format, "of all files, instead of by their names")
      ->one_of({"auto", "text", "jsonl", "fasta", "parquet"})
      ->capture_default_str();
  verb->add_option("--field", arguments->field, "the JSONL field or Parquet column that holds the text")
      ->capture_default_str();
  add_number(*verb, "--vocab-size", arguments->options.vocab_size, "entries, with the 256 bytes and the special tokens",
             257, 1 << 24)
      ->capture_default_str();
  verb->add_option("--pattern", arguments->options.pattern, "how text is cut into words: gpt2 or llama3")
      ->one_of({"gpt2", "llama3"})
      ->capture_default_str();
  arguments->options.special_tokens = {"<|endoftext|>"};
  verb->add_option("--special", arguments->options.special_tokens, "special tokens, which get the first ids")
      ->capture_default_str();
  add_number(*verb, "--min-frequency", arguments->options.min_frequency, "pairs seen less often are not merged", 1,
             std::int64_t{1} << 40)
      ->capture_default_str();
  add_number(*verb, "--max-words", arguments->max_words, "distinct words held in memory", 1000, 1'000'000'000)
      ->capture_default_str();
  add_number(*verb, "--threads", arguments->threads, "threads that count words", 1, 4096);
  verb->add_flag("--force", arguments->force, "replace a file of that name");
  verb->add_flag("--json", arguments->json, "print what was made as JSON");
  verb->footer("Example: essh tokenizer train corpus/ -o tokenizer.json --vocab-size 4096");
  verb->callback([arguments] { train(*arguments); });
}

void add_encode(Verb& app) {
  auto arguments = std::make_shared<EncodeArguments>();
  auto* verb = app.add_subcommand("encode", "text on standard input to ids on standard output");
  verb->add_option("--tokenizer", arguments->tokenizer, "a tokenizer file or model folder, or: bytes, nucleotides")
      ->required();
  verb->add_flag("--json", arguments->json, "print a JSON array instead of ids and spaces");
  verb->add_flag("--jsonl", arguments->jsonl, "each line is one JSON string; print one JSON array for each");
  add_number(*verb, "--threads", arguments->threads, "threads that encode the lines of --jsonl", 1, 4096);
  verb->add_flag("--add-special-tokens", arguments->options.add_special_tokens,
                 "put the tokenizer's own tokens around each text");
  verb->add_flag("!--special-as-text", arguments->options.parse_special_tokens,
                 "take special tokens in the text as plain text");
  verb->footer("Example: echo 'Hello world' | essh tokenizer encode --tokenizer tokenizer.json --json");
  verb->callback([arguments] { encode(*arguments); });
}

void add_decode(Verb& app) {
  struct Arguments {
    fs::path tokenizer;
    DecodeOptions options;
  };
  auto arguments = std::make_shared<Arguments>();
  auto* verb = app.add_subcommand("decode", "ids on standard input to bytes on standard output");
  verb->add_option("--tokenizer", arguments->tokenizer, "a tokenizer file or model folder, or: bytes, nucleotides")
      ->required();
  verb->add_flag("--skip-special-tokens", arguments->options.skip_special_tokens, "leave special tokens out");
  verb->footer("Example: echo '[72, 105, 10]' | essh tokenizer decode --tokenizer bytes");
  verb->callback([arguments] {
    const auto tokenizer = load_tokenizer(arguments->tokenizer);
    write_standard_output(tokenizer->decode(parse_ids(read_standard_input()), arguments->options));
  });
}

void add_convert(Verb& app) {
  struct Arguments {
    fs::path tokenizer;
    fs::path output;
    bool force = false;
  };
  auto arguments = std::make_shared<Arguments>();
  auto* verb = app.add_subcommand("convert", "any tokenizer that we read as a tokenizer.json");
  verb->add_option("--tokenizer", arguments->tokenizer, "a tokenizer file or model folder, or: bytes, nucleotides")
      ->required();
  verb->add_option("-o,--output", arguments->output, "the tokenizer.json to write")->required();
  verb->footer("Example: essh tokenizer convert --tokenizer tokenizer.model -o tokenizer.json");
  verb->add_flag("--force", arguments->force, "replace a file of that name");
  verb->callback([arguments] {
    check_new_file(arguments->output, arguments->force);
    const auto tokenizer = load_tokenizer(arguments->tokenizer);
    write_durably(arguments->output, tokenizer->to_json());
    fmt::print("{}: {} entries\n", arguments->output.string(), tokenizer->vocab_size());
  });
}

}  // namespace

void add_tokenizer(Verb& app) {
  auto* verb = app.add_subcommand("tokenizer", "train a vocabulary; text to token ids and back");
  verb->require_subcommand(1);
  verb->footer("Example: essh tokenizer train corpus.txt -o tokenizer.json --vocab-size 4096");
  add_training(*verb);
  add_encode(*verb);
  add_decode(*verb);
  add_convert(*verb);
}

}  // namespace essh::verbs
