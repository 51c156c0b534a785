#pragma once
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "essh/text/bpe.h"
#include "essh/text/pretokenizer.h"
#include "essh/text/tokenizer.h"
#include "essh/text/tokenizer_added.h"
#include "essh/text/tokenizer_scratch.h"

namespace essh {

struct VocabEntry {
  std::string bytes;
  bool present = false;
  // Spelled with characters outside the byte alphabet: no word can become this token, and its bytes are its text.
  bool literal = false;
};

// Definition of a byte-level BPE tokenizer, read from a file or trained.
struct BpeSpec {
  std::vector<VocabEntry> vocab;  // by id
  std::vector<BpeMerge> merges;   // by rank
  bool ignore_merges = false;     // a word that is a token is encoded as that token, without merges
  std::vector<PreTokenizerStep> steps;
  std::vector<AddedToken> added;
  std::vector<TokenId> prefix;  // around a text, if special tokens are requested
  std::vector<TokenId> suffix;
  std::optional<TokenId> bos;
  std::optional<TokenId> eos;
};

// Upper bound of ids.
inline constexpr std::int64_t kMaxVocabulary = 1 << 22;

class BpeTokenizer : public Tokenizer {
 public:
  // Checks that ids are unique and merges consistent; `place` starts the messages.
  BpeTokenizer(BpeSpec spec, const std::string& place);

  using Tokenizer::encode;
  void encode(std::string_view text, std::vector<TokenId>& ids, EncodeOptions options = {}) const override;
  std::int64_t vocab_size() const override { return static_cast<std::int64_t>(tokens_.size()); }
  std::string_view token_bytes(TokenId id) const override;
  bool is_special(TokenId id) const override;
  std::optional<TokenId> token_id(std::string_view bytes) const override;
  std::string to_json() const override;

  const BpeSpec& spec() const { return spec_; }
  // Number of bytes without a token; they are dropped.
  int bytes_without_token() const;
  // Call before the tokenizer is shared between threads.
  void set_text_ends(std::optional<TokenId> bos, std::optional<TokenId> eos);

 private:
  struct Known {
    std::string_view bytes;  // into spec_
    bool special = false;
  };

  BpeSpec spec_;
  std::vector<Known> tokens_;
  std::unordered_map<std::string_view, TokenId> words_;  // tokens that words can become
  PreTokenizer pretokenizer_;
  Bpe bpe_;
  AddedTokenFinder plain_added_;
  AddedTokenFinder normalized_added_;
  mutable ScratchPool<BpeScratch> scratch_;
};

// End-of-text tokens by their common names, for vocabularies that do not declare them.
void guess_text_ends(BpeSpec& spec);

}  // namespace essh
