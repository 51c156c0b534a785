#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "essh/data/dataset.h"
#include "essh/text/tokenizer.h"

namespace essh {

// What stands between the documents of text files: the model's end-of-text token after each, as training has it, or
// one line break between two, the text tokenised as a whole.
enum class DocumentJoin { EndOfText, Newline };

// What a model is measured on: one stream of tokens and the bytes of text behind them.
class EvaluationText {
 public:
  // The validation split of a folder that `essh prepare` wrote.
  static EvaluationText from_dataset(const std::filesystem::path& folder);
  // Text files (and whatever else open_document_reader() reads), one after the other: each document as
  // `prepare` takes it, joined by `join`. A text that looks like a special token stays text. Reading stops once there
  // are `most_tokens`.
  static EvaluationText from_files(const std::vector<std::filesystem::path>& files, const Tokenizer& tokenizer,
                                   TokenId eos, std::int64_t most_tokens, DocumentJoin join = DocumentJoin::EndOfText);
  // Tokens as they are; without a tokenizer their bytes are unknown.
  static EvaluationText from_tokens(std::vector<TokenId> tokens, std::string name);

  // What `--data` means for a model: one prepared folder, or files for the tokenizer in `model_folder`, or the one at
  // `tokenizer` when that is not empty. A dataset of another tokenizer is an error, and so is one whose documents would
  // have to be joined by line breaks.
  static EvaluationText open(const std::vector<std::filesystem::path>& data, const std::filesystem::path& model_folder,
                             const std::string& tokenizer, TokenId eos, std::int64_t most_tokens,
                             DocumentJoin join = DocumentJoin::EndOfText);

  const std::string& name() const { return name_; }
  // Of the tokenizer that made the tokens; empty when unknown.
  const std::string& tokenizer_hash() const { return tokenizer_hash_; }
  // Of a dataset, its own; otherwise the SHA-256 of the tokens.
  std::string fingerprint() const;
  std::int64_t tokens() const;
  // Tokens [first, first + out.size()).
  void read(std::int64_t first, std::span<TokenId> out) const;
  // Bytes of text that tokens of this stream stand for, special tokens none; for a dataset, their mean. 0: unknown.
  double bytes(std::span<const TokenId> tokens) const;

 private:
  std::string name_;
  std::string tokenizer_hash_;
  std::unique_ptr<Dataset> dataset_;
  std::vector<TokenId> tokens_;
  std::vector<std::int32_t> token_bytes_;  // by id
};

}  // namespace essh
