#include "essh/text/tokenizer_nucleotide.h"

#include <fmt/core.h>

#include <array>

#include "essh/base/json.h"
#include "essh/text/unicode_classes.h"
#include "essh/text/utf8.h"

namespace essh {
namespace {

constexpr std::array<std::string_view, 12> kTokens = {"[CLS]", "[SEP]", "[BOS]", "[MASK]", "[PAD]", "[RESERVED]",
                                                      "[UNK]", "A",     "C",     "G",      "T",     "N"};
constexpr TokenId kEnd = 1;
constexpr TokenId kBegin = 2;
constexpr TokenId kUnknown = 6;
constexpr TokenId kFirstBase = 7;
constexpr TokenId kSkip = -1;

// Letters of each token; all other letters are unknown.
constexpr std::array<std::pair<std::string_view, TokenId>, 5> kLetters = {
    {{"Aa", 7}, {"Cc", 8}, {"Gg", 9}, {"TtUu", 10}, {"NnRrYySsWwKkMmBbDdHhVv", 11}}};

constexpr std::array<TokenId, 128> ascii_tokens() {
  std::array<TokenId, 128> table{};
  table.fill(kUnknown);
  for (const char c : {' ', '\t', '\n', '\v', '\f', '\r'}) table[static_cast<std::size_t>(c)] = kSkip;
  for (const auto& [letters, id] : kLetters) {
    for (const char c : letters) table[static_cast<std::size_t>(c)] = id;
  }
  return table;
}
constexpr auto kAsciiTokens = ascii_tokens();

Json replacement(std::string_view regex, std::string_view content) {
  return {{"type", "Replace"}, {"pattern", {{"Regex", regex}}}, {"content", content}};
}

// The same rules for Hugging Face: replace letters, drop spaces, split into characters.
Json nucleotide_json() {
  Json added = Json::array();
  Json vocab = Json::object();
  for (std::size_t id = 0; id < kTokens.size(); ++id) {
    vocab[std::string(kTokens[id])] = id;
  }
  Json normalizers = Json::array({replacement("\\s", "")});
  for (const auto& [letters, id] : kLetters) {
    normalizers.push_back(replacement(fmt::format("[{}]", letters), kTokens[static_cast<std::size_t>(id)]));
  }
  const auto special = [](TokenId id) {
    const std::string name(kTokens[static_cast<std::size_t>(id)]);
    return std::pair(Json{{"SpecialToken", {{"id", name}, {"type_id", 0}}}},
                     Json{{"id", name}, {"ids", Json::array({id})}, {"tokens", Json::array({name})}});
  };
  const auto sequence = [](const char* name, int type) {
    return Json{{"Sequence", {{"id", name}, {"type_id", type}}}};
  };
  const auto [begin, begin_ids] = special(kBegin);
  const auto [end, end_ids] = special(kEnd);
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer", {{"type", "Sequence"}, {"normalizers", normalizers}}},
          {"pre_tokenizer",
           {{"type", "Split"}, {"pattern", {{"Regex", "[\\s\\S]"}}}, {"behavior", "Isolated"}, {"invert", false}}},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single", Json::array({begin, sequence("A", 0), end})},
            {"pair", Json::array({begin, sequence("A", 0), end, sequence("B", 1), end})},
            {"special_tokens", {{"[BOS]", begin_ids}, {"[SEP]", end_ids}}}}},
          {"decoder", {{"type", "Fuse"}}},
          {"model", {{"type", "WordLevel"}, {"vocab", vocab}, {"unk_token", "[UNK]"}}}};
}

}  // namespace

NucleotideTokenizer::NucleotideTokenizer() {
  bos_ = kBegin;
  eos_ = kEnd;
}

void NucleotideTokenizer::encode(std::string_view text, std::vector<TokenId>& ids, EncodeOptions options) const {
  if (options.add_special_tokens) ids.push_back(kBegin);
  for (std::size_t at = 0; at < text.size();) {
    const auto byte = static_cast<std::uint8_t>(text[at]);
    TokenId id = kUnknown;
    if (byte < 128) {
      id = kAsciiTokens[byte];
      ++at;
    } else {
      const Utf8Char found = utf8_char(text, at);
      if (found.valid && char_class(found.code) == CharClass::Space) id = kSkip;
      at += found.length;
    }
    if (id != kSkip) ids.push_back(id);
  }
  if (options.add_special_tokens) ids.push_back(kEnd);
}

std::int64_t NucleotideTokenizer::vocab_size() const {
  return static_cast<std::int64_t>(kTokens.size());
}

std::string_view NucleotideTokenizer::token_bytes(TokenId id) const {
  check_id(id);
  return kTokens[static_cast<std::size_t>(id)];
}

bool NucleotideTokenizer::is_special(TokenId id) const {
  check_id(id);
  return id < kFirstBase;
}

std::optional<TokenId> NucleotideTokenizer::token_id(std::string_view bytes) const {
  for (std::size_t id = 0; id < kTokens.size(); ++id) {
    if (kTokens[id] == bytes) return static_cast<TokenId>(id);
  }
  return std::nullopt;
}

std::string NucleotideTokenizer::to_json() const {
  return to_text(nucleotide_json(), 2) + "\n";
}

std::unique_ptr<Tokenizer> make_nucleotide_tokenizer() {
  return std::make_unique<NucleotideTokenizer>();
}

bool is_nucleotide_json(const Json& file) {
  return file == nucleotide_json();
}

}  // namespace essh
