#include "essh/text/tokenizer_ranks.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <unordered_map>

#include "essh/base/error.h"
#include "essh/base/utf8.h"
#include "essh/text/byte_alphabet.h"

namespace essh {
namespace {

constexpr std::size_t kMaxTokenBytes = 1024;

// Calls line(std::string_view, number) for each non-empty line, numbered from 1, without its line break.
template <class Line>
void for_each_line(std::string_view text, Line&& line) {
  std::size_t number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view content = text.substr(0, end);
    if (content.ends_with('\r')) content.remove_suffix(1);
    ++number;
    if (!content.empty()) line(content, number);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

std::optional<std::string> from_base64(std::string_view text) {
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  std::size_t padding = 0;
  while (padding < 2 && text[text.size() - 1 - padding] == '=') ++padding;
  std::string bytes;
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    std::uint32_t value = 0;
    if (c >= 'A' && c <= 'Z') {
      value = static_cast<std::uint32_t>(c - 'A');
    } else if (c >= 'a' && c <= 'z') {
      value = static_cast<std::uint32_t>(c - 'a' + 26);
    } else if (c >= '0' && c <= '9') {
      value = static_cast<std::uint32_t>(c - '0' + 52);
    } else if (c == '+' || c == '/') {
      value = c == '+' ? 62 : 63;
    } else if (i < text.size() - padding) {
      return std::nullopt;
    }
    bits = bits << 6 | value;
    if (i % 4 == 3) {
      for (int shift = 16; shift >= 0; shift -= 8) bytes.push_back(static_cast<char>(bits >> shift & 0xFF));
      bits = 0;
    }
  }
  bytes.resize(bytes.size() - padding);
  return bytes;
}

void add_special(BpeSpec& spec, std::string content) {
  AddedToken token;
  token.id = static_cast<TokenId>(spec.vocab.size() + spec.added.size());
  token.content = std::move(content);
  token.special = true;
  spec.added.push_back(std::move(token));
}

void become_gpt2(BpeSpec& spec) {
  spec.steps = pattern_steps("gpt2");
  add_special(spec, "<|endoftext|>");
}

void become_llama3(BpeSpec& spec) {
  spec.steps = pattern_steps("llama3");
  spec.ignore_merges = true;
  constexpr int kSpecials = 256;
  int reserved = 0;
  for (int i = 0; i < kSpecials; ++i) {
    switch (i) {
      case 0:
        add_special(spec, "<|begin_of_text|>");
        break;
      case 1:
        add_special(spec, "<|end_of_text|>");
        break;
      case 6:
        add_special(spec, "<|start_header_id|>");
        break;
      case 7:
        add_special(spec, "<|end_header_id|>");
        break;
      case 9:
        add_special(spec, "<|eot_id|>");
        break;
      default:
        add_special(spec, fmt::format("<|reserved_special_token_{}|>", reserved++));
    }
  }
  spec.prefix = {spec.added.front().id};
}

struct Preset {
  std::size_t ranks;
  void (*become)(BpeSpec&);
};
constexpr Preset kPresets[] = {{50256, become_gpt2}, {128000, become_llama3}};

// tiktoken joins the adjacent tokens whose concatenation has the lowest rank. As merges: every split of a token into
// two tokens, sorted by the rank of the token, then of the two halves, the order of Hugging Face's conversion.
std::vector<BpeMerge> merges_of_ranks(const std::vector<VocabEntry>& vocab) {
  std::unordered_map<std::string_view, TokenId> ids;
  ids.reserve(vocab.size());
  for (std::size_t id = 0; id < vocab.size(); ++id) ids.emplace(vocab[id].bytes, static_cast<TokenId>(id));
  std::vector<BpeMerge> merges;
  for (std::size_t id = 0; id < vocab.size(); ++id) {
    const std::string_view bytes = vocab[id].bytes;
    const auto first = static_cast<std::ptrdiff_t>(merges.size());
    for (std::size_t cut = 1; cut < bytes.size(); ++cut) {
      const auto left = ids.find(bytes.substr(0, cut));
      if (left == ids.end()) continue;
      const auto right = ids.find(bytes.substr(cut));
      if (right != ids.end()) merges.push_back({left->second, right->second, static_cast<TokenId>(id)});
    }
    std::sort(merges.begin() + first, merges.end(), [](const BpeMerge& a, const BpeMerge& b) {
      return std::pair(a.left, a.right) < std::pair(b.left, b.right);
    });
  }
  return merges;
}

}  // namespace

std::vector<PreTokenizerStep> pattern_steps(std::string_view name) {
  if (name == "gpt2") return {ByteLevelStep{.add_prefix_space = false, .use_regex = true}};
  if (name == "llama3") {
    return {SplitStep{.pattern = std::string(kLlama3Pattern)},
            ByteLevelStep{.add_prefix_space = false, .use_regex = false}};
  }
  fail(ErrorKind::Usage, "the pattern {} is not known; there are gpt2 and llama3", in_quotes(name));
}

BpeSpec read_rank_file(std::string_view text, const std::string& place) {
  BpeSpec spec;
  for_each_line(text, [&](std::string_view line, std::size_t number) {
    const std::size_t space = std::min(line.find(' '), line.size());
    auto bytes = from_base64(line.substr(0, space));
    const std::string_view digits = line.substr(std::min(space + 1, line.size()));
    std::uint32_t rank = 0;
    const auto end = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
    if (!bytes || bytes->empty() || bytes->size() > kMaxTokenBytes || end.ec != std::errc() ||
        end.ptr != digits.data() + digits.size() || rank >= kMaxVocabulary) {
      fail(ErrorKind::BadFile, "{}:{}: expected a token in base64 (1 to {} bytes), a space and its rank", place, number,
           kMaxTokenBytes);
    }
    if (rank >= spec.vocab.size()) spec.vocab.resize(rank + 1);
    if (spec.vocab[rank].present) fail(ErrorKind::BadFile, "{}:{}: the rank {} occurs twice", place, number, rank);
    spec.vocab[rank] = {std::move(*bytes), true, false};
  });
  for (std::size_t rank = 0; rank < spec.vocab.size(); ++rank) {
    if (!spec.vocab[rank].present) fail(ErrorKind::BadFile, "{}: no token has the rank {}", place, rank);
  }
  const auto* preset = std::find_if(std::begin(kPresets), std::end(kPresets),
                                    [&](const Preset& known) { return known.ranks == spec.vocab.size(); });
  if (preset == std::end(kPresets)) {
    fail(ErrorKind::Unsupported,
         "{}: {} ranks, and a rank file does not say its pattern and special tokens; known are GPT-2's (50256) and "
         "Llama-3's "
         "(128000); give a tokenizer.json instead",
         place, spec.vocab.size());
  }
  spec.merges = merges_of_ranks(spec.vocab);
  preset->become(spec);
  guess_text_ends(spec);
  return spec;
}

BpeSpec read_vocab_bpe(std::string_view text, const std::string& place) {
  BpeSpec spec;
  std::unordered_map<std::string, TokenId> ids;
  const auto add = [&](std::string bytes) {
    const auto id = static_cast<TokenId>(spec.vocab.size());
    const bool fresh = ids.emplace(bytes, id).second;
    spec.vocab.push_back({std::move(bytes), true, false});
    return fresh;
  };
  for (const std::uint8_t byte : gpt2_byte_order()) add(std::string(1, static_cast<char>(byte)));
  for_each_line(text, [&](std::string_view line, std::size_t number) {
    if (number == 1 && line.starts_with("#version")) return;
    const std::size_t space = line.find(' ');
    std::optional<std::string> left;
    std::optional<std::string> right;
    if (space != std::string_view::npos) {
      left = from_byte_alphabet(line.substr(0, space));
      right = from_byte_alphabet(line.substr(space + 1));
    }
    if (!left || !right || left->empty() || right->empty() || left->size() + right->size() > kMaxTokenBytes) {
      fail(ErrorKind::BadFile, "{}:{}: expected two tokens and a space between them", place, number);
    }
    const auto left_id = ids.find(*left);
    const auto right_id = ids.find(*right);
    if (left_id == ids.end() || right_id == ids.end()) {
      fail(ErrorKind::BadFile, "{}:{}: merges a token that no line before it has made", place, number);
    }
    if (spec.vocab.size() >= kMaxVocabulary - 1) fail(ErrorKind::BadFile, "{}: too many merges", place);
    spec.merges.push_back({left_id->second, right_id->second, static_cast<TokenId>(spec.vocab.size())});
    if (!add(*left + *right)) fail(ErrorKind::BadFile, "{}:{}: makes a token that there is already", place, number);
  });
  become_gpt2(spec);
  guess_text_ends(spec);
  return spec;
}

}  // namespace essh
