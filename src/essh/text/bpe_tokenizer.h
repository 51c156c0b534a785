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
  // Written with characters that stand for no byte, so that no word can become it; its bytes are its text.
  bool literal = false;
};

// All that a byte-level BPE tokenizer is, as read from a file or made by training.
struct BpeSpec {
  std::vector<VocabEntry> vocab;  // by id
  std::vector<BpeMerge> merges;   // by rank
  bool ignore_merges = false;     // a word that is a token is that token, whatever the merges say
  std::vector<PreTokenizerStep> steps;
  std::vector<AddedToken> added;
  std::vector<TokenId> prefix;  // around a text, when special tokens are asked for
  std::vector<TokenId> suffix;
  std::optional<TokenId> bos;
  std::optional<TokenId> eos;
};

// Ids stay below this, whatever a file says.
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
  // How many of the 256 bytes are left out when they are met.
  int bytes_without_token() const;
  // Before it is shared between threads.
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

// The ends of text by the names that vocabularies commonly give them, where nothing else says which they are.
void guess_text_ends(BpeSpec& spec);

}  // namespace essh
