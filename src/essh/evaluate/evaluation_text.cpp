#include "essh/evaluate/evaluation_text.h"

#include <algorithm>

#include "essh/base/error.h"
#include "essh/data/document_reader.h"

namespace essh {
namespace fs = std::filesystem;
namespace {

void append_documents(const fs::path& file, const Tokenizer& tokenizer, TokenId eos, std::int64_t most_tokens,
                      std::vector<TokenId>& tokens) {
  static const std::string kField = "text";
  const auto reader = open_document_reader(file, format_of_name(file), kField);
  Block block;
  while (static_cast<std::int64_t>(tokens.size()) < most_tokens && reader->read(block)) {
    decode_block(block, kField);
    if (block.bad_count > 0) {
      const auto& bad = block.bad_lines.front();
      fail(ErrorKind::BadFile, "{}: line {}: {}", file.string(), bad.number, describe(bad.fault, kField));
    }
    for (const auto& piece : block.pieces) {
      tokenizer.encode(std::string_view(block.text).substr(piece.begin, piece.size), tokens,
                       {.parse_special_tokens = false});
      if (piece.last) tokens.push_back(eos);
    }
    block.clear();
  }
}

}  // namespace

EvaluationText EvaluationText::from_dataset(const fs::path& folder) {
  EvaluationText text;
  text.name_ = folder.string();
  text.dataset_ = std::make_unique<Dataset>(folder);
  text.tokenizer_hash_ = text.dataset_->tokenizer_hash();
  if (text.tokens() == 0) {
    fail(ErrorKind::BadFile, "{}: the validation split is empty; prepare it with a larger valid_fraction",
         folder.string());
  }
  return text;
}

EvaluationText EvaluationText::from_files(const std::vector<fs::path>& files, const Tokenizer& tokenizer, TokenId eos,
                                          std::int64_t most_tokens) {
  EvaluationText text;
  text.tokenizer_hash_ = tokenizer.hash();
  for (const auto& file : files) {
    text.name_ += (text.name_.empty() ? "" : ", ") + file.string();
    append_documents(file, tokenizer, eos, most_tokens, text.tokens_);
  }
  if (static_cast<std::int64_t>(text.tokens_.size()) > most_tokens)
    text.tokens_.resize(static_cast<std::size_t>(most_tokens));
  text.token_bytes_.resize(static_cast<std::size_t>(tokenizer.vocab_size()));
  for (std::size_t i = 0; i < text.token_bytes_.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    if (id != eos && !tokenizer.is_special(id))
      text.token_bytes_[i] = static_cast<std::int32_t>(tokenizer.token_bytes(id).size());
  }
  return text;
}

EvaluationText EvaluationText::from_tokens(std::vector<TokenId> tokens, std::string name) {
  EvaluationText text;
  text.name_ = std::move(name);
  text.tokens_ = std::move(tokens);
  return text;
}

EvaluationText EvaluationText::open(const std::vector<fs::path>& data, const fs::path& model_folder,
                                    const std::string& tokenizer, TokenId eos, std::int64_t most_tokens) {
  const fs::path place = tokenizer.empty() ? model_folder : fs::path(tokenizer);
  const bool present = !tokenizer.empty() || fs::exists(model_folder / "tokenizer.json");
  if (data.size() == 1 && fs::is_directory(data.front())) {
    auto text = from_dataset(data.front());
    if (present && load_tokenizer(place)->hash() != text.tokenizer_hash_) {
      fail(ErrorKind::BadFile, "{}: prepared with another tokenizer than {}; prepare it again with that one",
           data.front().string(), place.string());
    }
    return text;
  }
  for (const auto& file : data) {
    if (fs::is_directory(file))
      fail(ErrorKind::Usage, "{}: give one prepared folder, or files of text, not both", file.string());
  }
  if (!present) {
    fail(ErrorKind::Usage, "{}: no tokenizer.json to read text with; name a tokenizer, or give a prepared dataset",
         model_folder.string());
  }
  return from_files(data, *load_tokenizer(place), eos, most_tokens);
}

std::int64_t EvaluationText::tokens() const {
  return dataset_ ? dataset_->valid().tokens() : static_cast<std::int64_t>(tokens_.size());
}

void EvaluationText::read(std::int64_t first, std::span<TokenId> out) const {
  if (dataset_) return dataset_->valid().read(first, out);
  std::copy_n(tokens_.begin() + first, out.size(), out.begin());
}

double EvaluationText::bytes(std::span<const TokenId> tokens) const {
  if (dataset_) return dataset_->valid_bytes_per_token() * static_cast<double>(tokens.size());
  double sum = 0;
  for (const auto token : tokens) {
    const auto id = static_cast<std::size_t>(token);
    if (id < token_bytes_.size()) sum += token_bytes_[id];
  }
  return sum;
}

}  // namespace essh
