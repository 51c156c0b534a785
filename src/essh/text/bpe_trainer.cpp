#include "essh/text/bpe_trainer.h"

#include <algorithm>
#include <queue>
#include <tuple>

#include "essh/base/error.h"
#include "essh/base/progress.h"
#include "essh/base/utf8.h"
#include "essh/text/byte_alphabet.h"
#include "essh/text/tokenizer_ranks.h"

namespace essh {
namespace {

using PairKey = std::uint64_t;

PairKey pair_of(TokenId left, TokenId right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

struct PairKeyHash {
  std::size_t operator()(PairKey key) const {
    key *= 0x9E3779B97F4A7C15u;
    return static_cast<std::size_t>(key ^ key >> 32);
  }
};

struct Candidate {
  std::uint64_t count;
  PairKey pair;
  // The heap's top: the highest count, then the lowest ids.
  bool operator<(const Candidate& other) const { return std::tie(count, other.pair) < std::tie(other.count, pair); }
};

// The words as symbols, and the words that contain each pair. Counts are exact. Lists of words may name words that have
// lost the pair, and the heap may hold outdated, higher counts: both are checked on use.
class Merger {
 public:
  Merger(const WordCounts& words, const std::array<TokenId, 256>& byte_ids) {
    std::size_t total = 0;
    for (const auto& [text, count] : words) total += text.size();
    symbols_.reserve(total);
    words_.reserve(words.size());
    for (const auto& [text, count] : words) {
      if (text.size() < 2) continue;
      const auto index = static_cast<std::uint32_t>(words_.size());
      words_.push_back({symbols_.size(), static_cast<std::uint32_t>(text.size()), count});
      for (const char byte : text) symbols_.push_back(byte_ids[static_cast<std::uint8_t>(byte)]);
      const TokenId* symbols = &symbols_[words_.back().begin];
      for (std::size_t i = 0; i + 1 < text.size(); ++i) gain(symbols[i], symbols[i + 1], index);
    }
    queue_gained();
  }

  // The pair to merge next; count 0 if none is left.
  Candidate best() {
    while (!heap_.empty()) {
      const Candidate top = heap_.top();
      heap_.pop();
      const auto found = pairs_.find(top.pair);
      if (found == pairs_.end()) continue;
      if (found->second.count == top.count) return top;
      if (found->second.count == 0) {
        pairs_.erase(found);
      } else if (found->second.count < top.count) {
        heap_.push({found->second.count, top.pair});
      }
    }
    return {0, 0};
  }

  void merge(PairKey pair, TokenId result) {
    const auto left = static_cast<TokenId>(pair >> 32);
    const auto right = static_cast<TokenId>(pair & 0xFFFFFFFF);
    const std::vector<std::uint32_t> places = std::move(pairs_[pair].words);
    for (const std::uint32_t index : places) merge_in_word(index, left, right, result);
    pairs_.erase(pair);
    queue_gained();
  }

 private:
  struct Word {
    std::size_t begin;
    std::uint32_t length;
    std::uint64_t count;
  };
  struct Pair {
    std::uint64_t count = 0;
    bool gained = false;
    std::vector<std::uint32_t> words;
  };

  void gain(TokenId left, TokenId right, std::uint32_t word) {
    const PairKey key = pair_of(left, right);
    Pair& pair = pairs_[key];
    pair.count += words_[word].count;
    if (pair.words.empty() || pair.words.back() != word) pair.words.push_back(word);
    if (!pair.gained) gained_.push_back(key);
    pair.gained = true;
  }
  void lose(TokenId left, TokenId right, std::uint32_t word) {
    const auto found = pairs_.find(pair_of(left, right));
    if (found != pairs_.end()) found->second.count -= words_[word].count;
  }
  void queue_gained() {
    for (const PairKey key : gained_) {
      const auto found = pairs_.find(key);
      if (found == pairs_.end()) continue;
      found->second.gained = false;
      if (found->second.count > 0) heap_.push({found->second.count, key});
    }
    gained_.clear();
  }
  void merge_in_word(std::uint32_t index, TokenId left, TokenId right, TokenId result) {
    Word& word = words_[index];
    TokenId* symbols = &symbols_[word.begin];
    std::uint32_t kept = 0;
    for (std::uint32_t i = 0; i < word.length;) {
      if (symbols[i] != left || i + 1 == word.length || symbols[i + 1] != right) {
        symbols[kept++] = symbols[i++];
        continue;
      }
      if (kept > 0) {
        lose(symbols[kept - 1], left, index);
        gain(symbols[kept - 1], result, index);
      }
      if (i + 2 < word.length) {
        lose(right, symbols[i + 2], index);
        gain(result, symbols[i + 2], index);
      }
      symbols[kept++] = result;
      i += 2;
    }
    word.length = kept;
  }

  std::vector<TokenId> symbols_;
  std::vector<Word> words_;
  std::unordered_map<PairKey, Pair, PairKeyHash> pairs_;
  std::vector<PairKey> gained_;
  std::priority_queue<Candidate> heap_;
};

}  // namespace

void check_training_options(const BpeTrainingOptions& options) {
  const auto least = static_cast<std::int64_t>(256 + options.special_tokens.size());
  if (options.vocab_size < least || options.vocab_size > kMaxVocabulary) {
    fail(ErrorKind::Usage,
         "a vocabulary of {} entries: with the 256 bytes and {} special tokens, {} to {} are possible",
         options.vocab_size, options.special_tokens.size(), least, kMaxVocabulary);
  }
  for (std::size_t i = 0; i < options.special_tokens.size(); ++i) {
    const std::string& token = options.special_tokens[i];
    const auto end = options.special_tokens.begin() + static_cast<std::ptrdiff_t>(i);
    if (token.size() < 2 || std::find(options.special_tokens.begin(), end, token) != end) {
      fail(ErrorKind::Usage, "the special token {} must be longer than one byte and be given once", in_quotes(token));
    }
  }
  pattern_steps(options.pattern);
}

BpeSpec train_bpe(const WordCounts& words, const BpeTrainingOptions& options) {
  check_training_options(options);
  BpeSpec spec;
  spec.steps = pattern_steps(options.pattern);
  std::unordered_map<std::string, TokenId> ids;
  const auto add = [&](VocabEntry entry) {
    const auto id = static_cast<TokenId>(spec.vocab.size());
    if (!entry.literal) ids.emplace(entry.bytes, id);
    spec.vocab.push_back(std::move(entry));
    return id;
  };
  for (const std::string& content : options.special_tokens) {
    const auto bytes = from_byte_alphabet(content);
    AddedToken token;
    token.id = add({bytes.value_or(content), true, !bytes.has_value()});
    token.content = content;
    token.special = true;
    spec.added.push_back(std::move(token));
  }
  std::array<TokenId, 256> byte_ids;
  for (const std::uint8_t byte : gpt2_byte_order()) {
    byte_ids[byte] = add({std::string(1, static_cast<char>(byte)), true, false});
  }

  Merger merger(words, byte_ids);
  Progress progress("merges", static_cast<double>(options.vocab_size), "tok");
  while (static_cast<std::int64_t>(spec.vocab.size()) < options.vocab_size) {
    const Candidate best = merger.best();
    if (best.count == 0 || best.count < options.min_frequency) break;
    const auto left = static_cast<TokenId>(best.pair >> 32);
    const auto right = static_cast<TokenId>(best.pair & 0xFFFFFFFF);
    std::string bytes =
        spec.vocab[static_cast<std::size_t>(left)].bytes + spec.vocab[static_cast<std::size_t>(right)].bytes;
    // Two merges may produce the same token.
    const auto known = ids.find(bytes);
    const TokenId result = known != ids.end() ? known->second : add({std::move(bytes), true, false});
    spec.merges.push_back({left, right, result});
    merger.merge(best.pair, result);
    progress.update(static_cast<double>(spec.vocab.size()));
  }
  progress.finish();
  guess_text_ends(spec);
  return spec;
}

}  // namespace essh
