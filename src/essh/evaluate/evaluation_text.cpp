#include "essh/evaluate/evaluation_text.h"

#include <algorithm>
#include <functional>

#include "essh/base/error.h"
#include "essh/base/sha256.h"
#include "essh/data/document_reader.h"

namespace essh {
namespace fs = std::filesystem;
namespace {

// Encodes text that arrives in stretches. Cuts only where the splitter's pattern cuts too.
class StretchEncoder {
 public:
  StretchEncoder(const Tokenizer& tokenizer, std::vector<TokenId>& tokens) : tokenizer_(tokenizer), tokens_(tokens) {}

  void add(std::string_view text) {
    pending_ += text;
    while (pending_.size() > kPieceBytes) take(cut_document(pending_));
  }
  void finish() { take(pending_.size()); }

 private:
  void take(std::size_t bytes) {
    tokenizer_.encode(std::string_view(pending_).substr(0, bytes), tokens_, {.parse_special_tokens = false});
    pending_.erase(0, bytes);
  }

  const Tokenizer& tokenizer_;
  std::vector<TokenId>& tokens_;
  std::string pending_;
};

// Calls take(text, first, last) for every piece of every document, until it returns false.
void for_each_piece(const std::vector<fs::path>& files,
                    const std::function<bool(std::string_view text, bool first, bool last)>& take) {
  static const std::string kField = "text";
  for (const auto& file : files) {
    const auto reader = open_document_reader(file, format_of_name(file), kField);
    Block block;
    while (reader->read(block)) {
      decode_block(block, kField);
      if (block.bad_count > 0) {
        const auto& bad = block.bad_lines.front();
        fail(ErrorKind::BadFile, "{}: line {}: {}", file.string(), bad.number, describe(bad.fault, kField));
      }
      for (const auto& piece : block.pieces) {
        if (!take(std::string_view(block.text).substr(piece.begin, piece.size), piece.first, piece.last)) return;
      }
      block.clear();
    }
  }
}

// The tokenizer for text files; null if the model folder has none and none is named.
std::unique_ptr<const Tokenizer> tokenizer_of(const fs::path& model_folder, const std::string& named) {
  if (!named.empty()) return load_tokenizer(named);
  return fs::exists(model_folder / "tokenizer.json") ? load_tokenizer(model_folder) : nullptr;
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
                                          std::int64_t most_tokens, DocumentJoin join) {
  EvaluationText text;
  text.tokenizer_hash_ = tokenizer.hash();
  for (const auto& file : files) text.name_ += (text.name_.empty() ? "" : ", ") + file.string();
  StretchEncoder joined(tokenizer, text.tokens_);
  bool begun = false;
  for_each_piece(files, [&](std::string_view piece, bool first, bool last) {
    if (join == DocumentJoin::Newline) {
      if (first && begun) joined.add("\n");
      joined.add(piece);
      begun = true;
    } else {
      tokenizer.encode(piece, text.tokens_, {.parse_special_tokens = false});
      if (last) text.tokens_.push_back(eos);
    }
    return static_cast<std::int64_t>(text.tokens_.size()) < most_tokens;
  });
  joined.finish();
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
                                    const std::string& tokenizer, TokenId eos, std::int64_t most_tokens,
                                    DocumentJoin join) {
  const auto loaded = tokenizer_of(model_folder, tokenizer);
  return open(data, loaded.get(), tokenizer.empty() ? model_folder : fs::path(tokenizer), eos, most_tokens, join);
}

EvaluationText EvaluationText::open(const std::vector<fs::path>& data, const Tokenizer* tokenizer,
                                    const fs::path& place, TokenId eos, std::int64_t most_tokens, DocumentJoin join) {
  if (data.size() == 1 && fs::is_directory(data.front())) {
    if (join == DocumentJoin::Newline) {
      fail(ErrorKind::Usage, "{}: its documents are joined by end-of-text tokens already; give the files of text",
           data.front().string());
    }
    auto text = from_dataset(data.front());
    if (tokenizer != nullptr && tokenizer->hash() != text.tokenizer_hash_) {
      fail(ErrorKind::BadFile, "{}: prepared with another tokenizer than {}; prepare it again with that one",
           data.front().string(), place.string());
    }
    return text;
  }
  for (const auto& file : data) {
    if (fs::is_directory(file))
      fail(ErrorKind::Usage, "{}: give one prepared folder, or files of text, not both", file.string());
  }
  if (tokenizer == nullptr) {
    fail(ErrorKind::Usage, "{}: no tokenizer.json to read text with; name a tokenizer, or give a prepared dataset",
         place.string());
  }
  return from_files(data, *tokenizer, eos, most_tokens, join);
}

const EvaluationText& SharedTexts::open(const std::vector<fs::path>& data, const fs::path& model_folder,
                                        const std::string& tokenizer, TokenId eos, std::int64_t most_tokens,
                                        DocumentJoin join) {
  const auto loaded = tokenizer_of(model_folder, tokenizer);
  auto key = fmt::format("{} {} {} {}", loaded ? loaded->hash() : "", eos, most_tokens, static_cast<int>(join));
  for (const auto& path : data) key += '\0' + path.string();
  if (const auto found = texts_.find(key); found != texts_.end()) return found->second;
  auto text = EvaluationText::open(data, loaded.get(), tokenizer.empty() ? model_folder : fs::path(tokenizer), eos,
                                   most_tokens, join);
  return texts_.emplace(std::move(key), std::move(text)).first->second;
}

std::string EvaluationText::fingerprint() const {
  if (dataset_) return dataset_->fingerprint();
  Sha256 hash;
  hash.update(std::as_bytes(std::span(tokens_)));
  return hash.hex();
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
