#include "essh/text/bpe_trainer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>

#include "essh/base/error.h"
#include "essh/base/file.h"
#include "essh/base/rng.h"

namespace essh {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> merge_texts(const BpeSpec& spec) {
  std::vector<std::string> texts;
  for (const BpeMerge& merge : spec.merges) {
    texts.push_back(spec.vocab[static_cast<std::size_t>(merge.left)].bytes + "+" +
                    spec.vocab[static_cast<std::size_t>(merge.right)].bytes);
  }
  return texts;
}

TEST(BpeTrainer, MergesTheMostFrequentAndTheLowestIdsFirst) {
  const WordCounts words = {{"aaab", 3}, {"cab", 2}, {"xy", 5}, {"z", 100}};
  // (a,a) 6, (a,b) 5, (x,y) 5, (c,a) 2; then aa+a 3 and a+b 5: ties go to the lower ids, a, b before x, y.
  const BpeSpec spec = train_bpe(words, {.vocab_size = 300, .special_tokens = {"<|endoftext|>"}, .min_frequency = 2});
  EXPECT_EQ(merge_texts(spec), (std::vector<std::string>{"a+a", "a+b", "x+y", "aa+ab", "c+ab"}));
  EXPECT_EQ(spec.vocab[0].bytes, "<|endoftext|>");
  EXPECT_EQ(spec.vocab[1].bytes, "!");
  EXPECT_EQ(spec.vocab.size(), 1u + 256 + 5);
  EXPECT_EQ(spec.eos, std::optional<TokenId>(0));
}

TEST(BpeTrainer, StopsAtTheSizeAndTheFrequency) {
  const WordCounts words = {{"abcd", 2}, {"abx", 1}};
  EXPECT_EQ(merge_texts(train_bpe(words, {.vocab_size = 257})), (std::vector<std::string>{"a+b"}));
  EXPECT_EQ(merge_texts(train_bpe(words, {.vocab_size = 300, .min_frequency = 3})), (std::vector<std::string>{"a+b"}));
  EXPECT_THROW(train_bpe(words, {.vocab_size = 255}), Error);
  EXPECT_THROW(train_bpe(words, {.vocab_size = 300, .pattern = "gpt9"}), Error);
  EXPECT_THROW(train_bpe(words, {.vocab_size = 300, .special_tokens = {"<x>", "<x>"}}), Error);
}

// By definition: recounts everything at every step.
BpeSpec by_definition(const WordCounts& words, std::size_t merges) {
  BpeSpec spec;
  std::vector<std::pair<std::vector<TokenId>, std::uint64_t>> symbols;
  const BpeSpec bytes = train_bpe({}, {.vocab_size = 256});
  spec.vocab = bytes.vocab;
  std::array<TokenId, 256> ids{};
  for (std::size_t id = 0; id < 256; ++id)
    ids[static_cast<std::uint8_t>(spec.vocab[id].bytes[0])] = static_cast<TokenId>(id);
  for (const auto& [text, count] : words) {
    auto& list = symbols.emplace_back(std::vector<TokenId>{}, count).first;
    for (const char c : text) list.push_back(ids[static_cast<std::uint8_t>(c)]);
  }
  while (spec.merges.size() < merges) {
    std::map<std::pair<TokenId, TokenId>, std::uint64_t> counts;
    for (const auto& [list, count] : symbols) {
      for (std::size_t i = 0; i + 1 < list.size(); ++i) counts[{list[i], list[i + 1]}] += count;
    }
    auto best = counts.begin();
    for (auto it = counts.begin(); it != counts.end(); ++it) {
      if (it->second > best->second) best = it;
    }
    if (best == counts.end() || best->second < 2) break;
    const auto [left, right] = best->first;
    const std::string both =
        spec.vocab[static_cast<std::size_t>(left)].bytes + spec.vocab[static_cast<std::size_t>(right)].bytes;
    auto known = std::find_if(spec.vocab.begin(), spec.vocab.end(),
                              [&](const VocabEntry& entry) { return entry.bytes == both; });
    const auto result = static_cast<TokenId>(known - spec.vocab.begin());
    if (known == spec.vocab.end()) spec.vocab.push_back({both, true, false});
    spec.merges.push_back({left, right, result});
    for (auto& [list, count] : symbols) {
      std::vector<TokenId> kept;
      for (std::size_t i = 0; i < list.size(); ++i) {
        if (i + 1 < list.size() && list[i] == left && list[i + 1] == right) {
          kept.push_back(result);
          ++i;
        } else {
          kept.push_back(list[i]);
        }
      }
      list = kept;
    }
  }
  return spec;
}

TEST(BpeTrainer, KeepsExactCounts) {
  Rng rng(11);
  for (int round = 0; round < 20; ++round) {
    WordCounts words;
    for (int i = 0; i < 60; ++i) {
      std::string word;
      for (std::uint64_t k = 1 + rng.below(12); k > 0; --k) word.push_back("abc"[rng.below(3)]);
      words[word] += 1 + rng.below(9);
    }
    const BpeSpec expected = by_definition(words, 80);
    const BpeSpec spec = train_bpe(words, {.vocab_size = static_cast<std::int64_t>(expected.vocab.size())});
    auto texts = merge_texts(expected);
    // Merges whose result already existed may follow the last new entry.
    texts.resize(merge_texts(spec).size());
    EXPECT_EQ(merge_texts(spec), texts);
  }
}

TEST(BpeWordCounter, ALongTextIsCutWhereNoWordCrosses) {
  Rng rng(12);
  const std::vector<std::string> parts = {
      "word", " ", "\n", "  ", "\n\n", "it's", "'", "re", "123", "\xC3\xA9", "<|end of text|>", ".", "\r\n", "x "};
  std::string text = "word";
  while (text.size() < (3 << 20)) text += parts[rng.below(parts.size())];
  text += "word\n";
  constexpr int kTimes = 4;  // more than is counted in one piece
  std::string longer;
  for (int i = 0; i < kTimes; ++i) longer += text;
  for (const char* pattern : {"gpt2", "llama3"}) {
    BpeWordCounter whole(pattern, {"<|end of text|>"}, 1'000'000, 1);
    whole.add_text(text);
    WordCounts expected = whole.take();
    EXPECT_FALSE(expected.contains(" of"));
    for (auto& [word, count] : expected) count *= kTimes;
    for (const int threads : {1, 3}) {
      BpeWordCounter pieces(pattern, {"<|end of text|>"}, 1'000'000, threads);
      pieces.add_text(longer);
      EXPECT_EQ(pieces.bytes(), longer.size());
      EXPECT_EQ(pieces.take(), expected);
    }
  }
}

TEST(BpeWordCounter, LongTextWithoutAnyCutIsTakenInPieces) {
  BpeWordCounter counter("gpt2", {}, 1'000'000, 1);
  std::string text;
  for (int i = 0; i < (9 << 20) / 2; ++i) text += "\xC3\xA9";
  counter.add_text(text);
  std::uint64_t bytes = 0;
  for (const auto& [word, count] : counter.take()) {
    EXPECT_EQ(word.size() % 2, 0u);
    EXPECT_LE(word.size(), 4096u);
    bytes += word.size() * count;
  }
  EXPECT_EQ(bytes, text.size());
}

TEST(BpeWordCounter, ForgetsTheRarestFirst) {
  BpeWordCounter counter("gpt2", {}, 1000, 1);
  std::string text;
  for (int i = 0; i < 3000; ++i) text += fmt::format(" common x{}y", i);
  counter.add_text(text);
  const WordCounts words = counter.take();
  EXPECT_GT(counter.forgotten(), 0u);
  EXPECT_LE(words.size(), 1000u);
  EXPECT_EQ(words.at(" common"), 3000u);
}

}  // namespace
}  // namespace essh
