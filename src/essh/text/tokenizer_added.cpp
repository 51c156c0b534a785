#include "essh/text/tokenizer_added.h"

#include <algorithm>
#include <cstring>

#include "essh/text/unicode_classes.h"
#include "essh/text/utf8.h"

namespace essh {
namespace {

bool word_at(std::string_view text, std::size_t at) {
  const Utf8Char found = utf8_char(text, at);
  return found.valid && is_word_char(found.code);
}

bool space_at(std::string_view text, std::size_t at) {
  const Utf8Char found = utf8_char(text, at);
  return found.valid && char_class(found.code) == CharClass::Space;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::sort(tokens_.begin(), tokens_.end(), [](const auto& a, const auto& b) { return a.content < b.content; });
  for (const AddedToken& token : tokens_) {
    bool& start = starts_[static_cast<std::uint8_t>(token.content.front())];
    if (!start) start_list_.push_back(token.content.front());
    start = true;
  }
}

std::optional<AddedTokenFinder::Match> AddedTokenFinder::find(std::string_view text, std::size_t from) const {
  if (tokens_.empty()) return std::nullopt;
  const bool one_start = start_list_.size() == 1;
  for (std::size_t at = from; at < text.size(); ++at) {
    if (one_start) {
      // Most vocabularies have only "<|...|>": memchr then searches at memory speed.
      const void* found = std::memchr(text.data() + at, start_list_.front(), text.size() - at);
      if (found == nullptr) return std::nullopt;
      at = static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
    } else if (!starts_[static_cast<std::uint8_t>(text[at])]) {
      continue;
    }
    if (const AddedToken* token = longest_at(text, at)) return Match{token, at, at + token->content.size()};
  }
  return std::nullopt;
}

const AddedToken* AddedTokenFinder::longest_at(std::string_view text, std::size_t begin) const {
  // Narrows the sorted list, byte by byte, to the contents that match the text.
  auto low = tokens_.begin();
  auto high = tokens_.end();
  const AddedToken* longest = nullptr;
  for (std::size_t depth = 0; begin + depth < text.size(); ++depth) {
    const auto byte = static_cast<std::uint8_t>(text[begin + depth]);
    const auto at_depth = [depth](const AddedToken& token) { return static_cast<std::uint8_t>(token.content[depth]); };
    low = std::partition_point(low, high, [&](const AddedToken& token) { return at_depth(token) < byte; });
    high = std::partition_point(low, high, [&](const AddedToken& token) { return at_depth(token) == byte; });
    if (low == high) break;
    if (low->content.size() == depth + 1) {
      longest = &*low;
      if (++low == high) break;
    }
  }
  return longest;
}

bool AddedTokenFinder::accept(std::string_view text, const AddedToken& token, bool parse_special, std::size_t done,
                              std::size_t& begin, std::size_t& end) const {
  if (token.special && !parse_special) return false;
  if (token.single_word) {
    if (begin > 0 && word_at(text, utf8_previous(text, begin))) return false;
    if (end < text.size() && word_at(text, end)) return false;
  }
  if (token.lstrip) {
    while (begin > done) {
      const std::size_t previous = utf8_previous(text, begin);
      if (previous < done || !space_at(text, previous)) break;
      begin = previous;
    }
  }
  if (token.rstrip) {
    while (end < text.size() && space_at(text, end)) end += utf8_char(text, end).length;
  }
  return true;
}

}  // namespace essh
