#include <optional>

#include "essh/base/log.h"
#include "essh/text/bpe_trainer.h"
#include "essh/text/tokenizer_json.h"
#include "essh/text/tokenizer_ranks.h"
#include "tests/fuzz/driver.h"
#include "tests/fuzz/mutate.h"

namespace essh {
namespace {

// Small files with every supported component.
std::vector<std::string> json_seeds() {
  log::set_level(log::Level::Quiet);
  std::vector<std::string> seeds;
  for (const char* pattern : {"gpt2", "llama3"}) {
    BpeSpec spec = train_bpe({{" hello", 3}, {"hell", 2}, {"aaaa", 5}, {"\n\n", 2}},
                             {.vocab_size = 266, .pattern = pattern, .special_tokens = {"<|endoftext|>"}});
    // Drops most bytes, so that more mutations hit the rest of the file.
    for (std::size_t id = 0; id < spec.vocab.size(); ++id) {
      const std::string& bytes = spec.vocab[id].bytes;
      if (bytes.size() == 1 && std::string_view("helo a\n").find(bytes[0]) == std::string_view::npos)
        spec.vocab[id].present = false;
    }
    spec.added.push_back({400, "<x>", true, true, true, true, false});
    spec.added.push_back({401, " y", false, true, false, false, true});
    if (pattern == std::string_view("llama3")) {
      spec.ignore_merges = true;
      spec.prefix = {0};
      spec.suffix = {401, 0};
      spec.steps.insert(spec.steps.begin(), DigitsStep{true});
      spec.steps.insert(spec.steps.begin(), SplitStep{"[a-e]+|l(?!o)", false, true, SplitBehavior::MergedWithNext});
      spec.steps.insert(spec.steps.begin(), SplitStep{"o ", true, false, SplitBehavior::Contiguous});
    } else {
      spec.steps = {ByteLevelStep{true, true}};
    }
    seeds.push_back(write_tokenizer_json(spec));
  }
  seeds.push_back(make_nucleotide_tokenizer()->to_json());
  return seeds;
}

class TokenizerFuzzer {
 public:
  explicit TokenizerFuzzer(std::uint64_t seed)
      : seeds_(json_seeds()),
        lists_{"#version: 0.2\nh e\nhe l\n\xC4\xA0 hel\n", "aGU= 0\nbA== 1\n/w== 2\naGVs 3\n"},
        mutator_(seed, {"{",
                        "}",
                        "[",
                        "]",
                        ",",
                        ":",
                        "\"",
                        "null",
                        "true",
                        "false",
                        "-1",
                        "\"a a\"",
                        "[\"a\",\"a\"]",
                        "\"aa\": 3,",
                        "\"type\": \"Sequence\",",
                        "\"type\": \"NFC\"",
                        "\"Regex\": \"(a+)+$\"",
                        "\"Regex\": \"(?R)\"",
                        "\"Regex\": \"\\\\K\"",
                        "\"Regex\": \"a*\"",
                        "\"<0x-1>\": 7,",
                        "\\ud800",
                        "\xff",
                        "\n",
                        " ",
                        "=",
                        "4194303",
                        "\"Removed\"",
                        "\"Isolated\"",
                        "\"single_word\": true,",
                        "\"ignore_merges\": true,"}) {}

  void operator()() {
    std::optional<BpeTokenizer> list;
    std::unique_ptr<Tokenizer> file;
    if (mutator_.one_in(16)) {
      text_ = mutator_.pick(lists_);
      mutator_.mutate(text_, mutator_.pick(lists_));
      list.emplace(text_.starts_with("#") ? read_vocab_bpe(text_, "list") : read_rank_file(text_, "list"), "list");
    } else {
      text_ = mutator_.pick(seeds_);
      do mutator_.mutate_json(text_, mutator_.pick(seeds_));
      while (mutator_.one_in(4));
      file = read_tokenizer_json(text_, "tokenizer.json");
    }
    check(list ? *list : *file);
  }

 private:
  // An accepted tokenizer returns ids of its vocabulary, decodes them, and survives a round trip.
  void check(const Tokenizer& tokenizer) {
    static constexpr std::string_view kSample =
        "hello  aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa <x> y<|endoftext|>\n\n12 \xC3\xA9\xFF";
    std::string sample(kSample);
    mutator_.mutate(sample, kSample);
    const auto ids = tokenizer.encode(sample, {.add_special_tokens = true, .parse_special_tokens = mutator_.one_in(2)});
    for (const TokenId id : ids) {
      if (id < 0 || id >= tokenizer.vocab_size() || tokenizer.token_bytes(id).empty())
        throw std::logic_error("an id that is no token");
    }
    StreamDecoder stream(tokenizer);
    std::string text;
    for (const TokenId id : ids) text += stream.add(id);
    text += stream.flush();
    const auto again = read_tokenizer_json(tokenizer.to_json(), "again");
    if (again->to_json() != tokenizer.to_json())
      throw std::logic_error("writing and reading again changed the tokenizer");
    if (again->encode(sample, {.add_special_tokens = true}) != tokenizer.encode(sample, {.add_special_tokens = true})) {
      throw std::logic_error("writing and reading again changed the ids");
    }
  }

  std::vector<std::string> seeds_;
  std::vector<std::string> lists_;
  fuzz::Mutator mutator_;
  std::string text_;
};

const fuzz::Registered<TokenizerFuzzer> kTokenizerFuzzer("tokenizer");

}  // namespace
}  // namespace essh
