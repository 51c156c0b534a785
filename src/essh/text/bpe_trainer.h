#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "essh/text/bpe_tokenizer.h"
#include "essh/text/bpe_word_counts.h"

namespace essh {

struct BpeTrainingOptions {
  std::int64_t vocab_size = 32768;            // with the special tokens and the 256 bytes
  std::string pattern = "gpt2";               // or "llama3": how text was, and will be, cut into words
  std::vector<std::string> special_tokens{};  // ids 0, 1, ...
  std::uint64_t min_frequency = 2;            // a pair seen less often is not merged
};

// Throws a Usage error for options that no training can meet.
void check_training_options(const BpeTrainingOptions& options);

// Learns merges from the counts of words. The most frequent pair is merged first; among equals the one with the lowest
// left id, then the lowest right id. Ids: special tokens, the 256 bytes in the order of their stand-ins, merges. There
// are fewer than vocab_size when the words do not give more.
BpeSpec train_bpe(const WordCounts& words, const BpeTrainingOptions& options);

}  // namespace essh
