#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "essh/data/dataset.h"
#include "essh/text/tokenizer.h"

namespace essh {

// How documents of text files are joined. EndOfText: the model's end-of-text token follows each, as in training.
// Newline: one line break between two, and the text is tokenised as a whole.
enum class DocumentJoin { EndOfText, Newline };

// The text that a model is measured on: one stream of tokens and the bytes behind them.
class EvaluationText {
 public:
  // The validation split of a folder that `essh prepare` wrote.
  static EvaluationText from_dataset(const std::filesystem::path& folder);
  // Files in any format of open_document_reader(), in order, split into documents as by `prepare`. Text that looks like
  // a special token stays text. Reading stops at `most_tokens`.
  static EvaluationText from_files(const std::vector<std::filesystem::path>& files, const Tokenizer& tokenizer,
                                   TokenId eos, std::int64_t most_tokens, DocumentJoin join = DocumentJoin::EndOfText);
  // Given tokens; their bytes are unknown.
  static EvaluationText from_tokens(std::vector<TokenId> tokens, std::string name);

  // What `--data` means for a model: one prepared folder, or text files, encoded with the tokenizer in `model_folder`
  // or, if `tokenizer` is not empty, with that one. A dataset of another tokenizer is an error, and so is a dataset
  // with DocumentJoin::Newline.
  static EvaluationText open(const std::vector<std::filesystem::path>& data, const std::filesystem::path& model_folder,
                             const std::string& tokenizer, TokenId eos, std::int64_t most_tokens,
                             DocumentJoin join = DocumentJoin::EndOfText);

  const std::string& name() const { return name_; }
  // Hash of the tokenizer that made the tokens; empty if unknown.
  const std::string& tokenizer_hash() const { return tokenizer_hash_; }
  // The dataset's own, or SHA-256 of the tokens.
  std::string fingerprint() const;
  std::int64_t tokens() const;
  // Tokens [first, first + out.size()).
  void read(std::int64_t first, std::span<TokenId> out) const;
  // Bytes of text behind tokens of this stream; special tokens have none. For a dataset, the mean of its validation
  // split. 0: unknown.
  double bytes(std::span<const TokenId> tokens) const;

 private:
  friend class SharedTexts;
  // Without a tokenizer only a dataset can be opened. `place` names the tokenizer in messages.
  static EvaluationText open(const std::vector<std::filesystem::path>& data, const Tokenizer* tokenizer,
                             const std::filesystem::path& place, TokenId eos, std::int64_t most_tokens,
                             DocumentJoin join);

  std::string name_;
  std::string tokenizer_hash_;
  std::unique_ptr<Dataset> dataset_;
  std::vector<TokenId> tokens_;
  std::vector<std::int32_t> token_bytes_;  // by id
};

// The texts of several models. Models with equal tokenizers and end-of-text tokens share one text, so that files are
// read and encoded once. All texts stay in memory: four bytes a token, nothing for a prepared dataset.
class SharedTexts {
 public:
  // As EvaluationText::open(). The reference is valid as long as this object.
  const EvaluationText& open(const std::vector<std::filesystem::path>& data, const std::filesystem::path& model_folder,
                             const std::string& tokenizer, TokenId eos, std::int64_t most_tokens,
                             DocumentJoin join = DocumentJoin::EndOfText);

 private:
  std::map<std::string, EvaluationText> texts_;  // by everything that the tokens depend on
};

}  // namespace essh
