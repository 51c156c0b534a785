#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "essh/base/thread_pool.h"
#include "essh/text/pretokenizer.h"
#include "essh/text/tokenizer_added.h"

namespace essh {

struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using WordCounts = std::unordered_map<std::string, std::uint64_t, StringHash, std::equal_to<>>;

// Counts words; words over 4096 bytes are counted in pieces. The counts depend on the input and its order, not on the
// threads.
class BpeWordCounter {
 public:
  // `pattern` is "gpt2" or "llama3". Special tokens separate texts and are not counted. Beyond `max_words` different
  // words, the rarest half is dropped.
  BpeWordCounter(const std::string& pattern, const std::vector<std::string>& special_tokens, std::uint64_t max_words,
                 int threads);

  // A long text is counted in pieces that no word crosses.
  void add_text(std::string_view text);

  // Bytes counted so far, and bytes of dropped words.
  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t forgotten() const { return forgotten_; }
  // Counts pending text and returns the counts.
  WordCounts take();

 private:
  void add_block(std::string block);
  void count_blocks();
  void forget_rare();
  std::size_t safe_cut(std::string_view text) const;

  std::vector<std::string> special_;
  PreTokenizer pretokenizer_;
  AddedTokenFinder finder_;
  std::uint64_t max_words_;
  ThreadPool pool_;
  std::vector<std::string> waiting_;
  std::size_t waiting_bytes_ = 0;
  std::vector<WordCounts> per_thread_;
  WordCounts counts_;
  std::uint64_t bytes_ = 0;
  std::uint64_t forgotten_ = 0;
};

}  // namespace essh
