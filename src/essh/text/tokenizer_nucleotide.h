#pragma once
#include "essh/base/json_fwd.h"
#include "essh/text/tokenizer.h"

namespace essh {

// One token per base, in the twelve entries that DNA models commonly use:
//   0 [CLS]  1 [SEP]  2 [BOS]  3 [MASK]  4 [PAD]  5 [RESERVED]  6 [UNK]  7 A  8 C  9 G  10 T  11 N
// Lower case (soft-masked sequence) counts as upper case, U as T, the other IUPAC codes as N; white space is skipped,
// and any other character is one [UNK]. [BOS] begins and [SEP] ends a text; they are never read from the text itself.
// decode(encode(x)) == x only for upper-case ACGTN.
class NucleotideTokenizer : public Tokenizer {
 public:
  NucleotideTokenizer();

  using Tokenizer::encode;
  void encode(std::string_view text, std::vector<TokenId>& ids, EncodeOptions options = {}) const override;
  std::int64_t vocab_size() const override;
  std::string_view token_bytes(TokenId id) const override;
  bool is_special(TokenId id) const override;
  std::optional<TokenId> token_id(std::string_view bytes) const override;
  std::string to_json() const override;
};

// Whether a parsed tokenizer.json is the one that NucleotideTokenizer writes.
bool is_nucleotide_json(const Json& file);

}  // namespace essh
