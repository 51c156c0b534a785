#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "essh/text/bpe_tokenizer.h"
#include "essh/text/bpe_word_counts.h"

namespace essh {

struct BpeTrainingOptions {
  std::int64_t vocab_size = 32768;            // including special tokens and the 256 bytes
  std::string pattern = "gpt2";               // or "llama3": how text is split into words
  std::vector<std::string> special_tokens{};  // ids 0, 1, ...
  std::uint64_t min_frequency = 2;            // rarer pairs are not merged
};

// Throws a Usage error for impossible options.
void check_training_options(const BpeTrainingOptions& options);

// Learns merges from the counts of words. The most frequent pair is merged first; ties go to the lowest left id, then
// to the lowest right id. Ids: special tokens, the 256 bytes in the order of the byte alphabet, merges. The vocabulary
// is smaller than vocab_size if the words do not give enough merges.
BpeSpec train_bpe(const WordCounts& words, const BpeTrainingOptions& options);

}  // namespace essh
