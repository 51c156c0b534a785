#include "essh/text/bpe_word_counts.h"

#include <algorithm>

#include "essh/text/tokenizer_ranks.h"
#include "essh/text/utf8.h"

namespace essh {
namespace {

constexpr std::size_t kLongestBlock = 8 << 20;
// Bytes per round of counting. Rare words are dropped only between rounds, so this size affects the result.
constexpr std::size_t kRoundBytes = 16 << 20;
constexpr std::size_t kRoundBlocks = 4096;
// Each merge scans its words from end to end, so very long words (DNA, base64) are counted in pieces.
constexpr std::size_t kLongestWord = 4096;

AddedTokenFinder special_finder(const std::vector<std::string>& contents) {
  std::vector<AddedToken> tokens;
  for (const std::string& content : contents) {
    AddedToken token;
    token.content = content;
    token.special = true;
    tokens.push_back(token);
  }
  return AddedTokenFinder(std::move(tokens));
}

bool is_ascii_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

}  // namespace

BpeWordCounter::BpeWordCounter(const std::string& pattern, const std::vector<std::string>& special_tokens,
                               std::uint64_t max_words, int threads)
    : special_(special_tokens),
      pretokenizer_(pattern_steps(pattern), "pattern"),
      finder_(special_finder(special_tokens)),
      max_words_(max_words),
      pool_(threads),
      per_thread_(static_cast<std::size_t>(threads)) {}

void BpeWordCounter::add_text(std::string_view text) {
  while (text.size() > kLongestBlock) {
    const std::size_t cut = safe_cut(text.substr(0, kLongestBlock));
    add_block(std::string(text.substr(0, cut)));
    text.remove_prefix(cut);
  }
  add_block(std::string(text));
}

// The last position where both patterns always end a word: after a letter and before a space or newline, outside
// special tokens. If there is none, the end, moved to a character boundary.
std::size_t BpeWordCounter::safe_cut(std::string_view text) const {
  const auto splits_special = [&](std::size_t cut) {
    for (const std::string& special : special_) {
      for (std::size_t back = 1; back < special.size() && back <= cut; ++back) {
        const std::string_view there = text.substr(cut - back, special.size());
        if (there == std::string_view(special).substr(0, there.size())) return true;
      }
    }
    return false;
  };
  for (std::size_t cut = text.size(); cut-- > 1;) {
    if ((text[cut] == ' ' || text[cut] == '\n') && is_ascii_letter(text[cut - 1]) && !splits_special(cut)) return cut;
  }
  for (std::size_t back = 1; back <= 3 && back < text.size(); ++back) {
    if (utf8_char(text, text.size() - back).cut) return text.size() - back;
  }
  return text.size();
}

void BpeWordCounter::add_block(std::string block) {
  if (block.empty()) return;
  bytes_ += block.size();
  waiting_bytes_ += block.size();
  waiting_.push_back(std::move(block));
  if (waiting_bytes_ >= kRoundBytes || waiting_.size() >= kRoundBlocks) count_blocks();
}

void BpeWordCounter::count_blocks() {
  pool_.each(static_cast<std::int64_t>(waiting_.size()), [&](std::int64_t index, int thread) {
    WordCounts& counts = per_thread_[static_cast<std::size_t>(thread)];
    const auto count_word = [&](std::string_view word) {
      if (const auto found = counts.find(word); found != counts.end()) {
        ++found->second;
      } else {
        counts.emplace(word, 1);
      }
    };
    const auto on_word = [&](std::string_view word) {
      while (word.size() > kLongestWord) {
        std::size_t cut = kLongestWord;
        while (cut > kLongestWord - 4 && (static_cast<unsigned char>(word[cut]) & 0xC0) == 0x80) --cut;
        count_word(word.substr(0, cut));
        word.remove_prefix(cut);
      }
      count_word(word);
    };
    finder_.split(
        waiting_[static_cast<std::size_t>(index)], true,
        [&](std::string_view piece) { pretokenizer_.for_each_word(piece, on_word); }, [](TokenId) {});
  });
  for (WordCounts& counts : per_thread_) {
    while (!counts.empty()) {
      auto node = counts.extract(counts.begin());
      const std::uint64_t count = node.mapped();
      const auto [place, inserted, rest] = counts_.insert(std::move(node));
      if (!inserted) place->second += count;
    }
  }
  waiting_.clear();
  waiting_bytes_ = 0;
  if (counts_.size() > max_words_) forget_rare();
}

void BpeWordCounter::forget_rare() {
  for (std::uint64_t rare = 1; counts_.size() > max_words_ / 2; rare *= 2) {
    forgotten_ += std::erase_if(counts_, [rare](const auto& entry) { return entry.second <= rare; });
  }
}

WordCounts BpeWordCounter::take() {
  count_blocks();
  return std::move(counts_);
}

}  // namespace essh
