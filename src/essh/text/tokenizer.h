#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace essh {

using TokenId = std::int32_t;

struct EncodeOptions {
  // Apply the file's post-processor, for example add a beginning-of-text token.
  bool add_special_tokens = false;
  // Encode special tokens in the text, such as "<|endoftext|>", as those tokens. Off for untrusted text.
  bool parse_special_tokens = true;
};

struct DecodeOptions {
  bool skip_special_tokens = false;
};

// Text to ids and back. Immutable and thread-safe. Any bytes can be encoded; bytes that are not UTF-8 become byte
// tokens. For byte-level tokenizers without prefix space and stripping tokens, decode(encode(x)) == x for every x.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Appends the ids of `text` to `ids`. Texts of 2 GiB and more are refused.
  virtual void encode(std::string_view text, std::vector<TokenId>& ids, EncodeOptions options = {}) const = 0;
  std::vector<TokenId> encode(std::string_view text, EncodeOptions options = {}) const;

  // The concatenated bytes of the tokens, not necessarily UTF-8. An id without a token is an error.
  std::string decode(std::span<const TokenId> ids, DecodeOptions options = {}) const;

  // One more than the largest id; ids without a token may lie below it.
  virtual std::int64_t vocab_size() const = 0;
  // The bytes of a token. Empty for an id below vocab_size() without a token.
  virtual std::string_view token_bytes(TokenId id) const = 0;
  virtual bool is_special(TokenId id) const = 0;
  virtual std::optional<TokenId> token_id(std::string_view bytes) const = 0;

  std::optional<TokenId> bos() const { return bos_; }
  std::optional<TokenId> eos() const { return eos_; }

  // A tokenizer.json that this library and Hugging Face tokenizers read, with the same ids.
  virtual std::string to_json() const = 0;
  // SHA-256 of to_json() with the ends of text: equal for equal tokenizers, independent of the file format.
  const std::string& hash() const;

 protected:
  Tokenizer() = default;
  // Throws an Error (Usage) that names the id unless 0 <= id < vocab_size().
  void check_id(TokenId id) const;

  std::optional<TokenId> bos_;
  std::optional<TokenId> eos_;

 private:
  mutable std::once_flag hashed_;
  mutable std::string hash_;
};

// Reads a tokenizer from
//  - a folder with tokenizer.json (and tokenizer_config.json, which names the ends of text), or with tokenizer.model,
//  - a tokenizer.json,
//  - a tiktoken rank file (Llama-3's tokenizer.model, GPT-2's ranks) or GPT-2's vocab.bpe (merges.txt),
//  - or, if no such file exists, the names "bytes" and "nucleotides".
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& path);

// 256 bytes, id = byte, and <|endoftext|> = 256.
std::unique_ptr<Tokenizer> make_byte_tokenizer();
// Twelve entries; see tokenizer_nucleotide.h.
std::unique_ptr<Tokenizer> make_nucleotide_tokenizer();

// Writes tokenizer.json and tokenizer_config.json into an existing folder, each atomically.
void save_tokenizer(const Tokenizer& tokenizer, const std::filesystem::path& folder);

// Decodes a stream of tokens to text without splitting characters: incomplete characters are held back. The
// concatenated output is to_valid_utf8(decode(ids)). The tokenizer must outlive it.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, DecodeOptions options = {})
      : tokenizer_(tokenizer), options_(options) {}

  // The text that this token completes; may be empty.
  std::string add(TokenId id);
  // The rest: U+FFFD if a character is incomplete.
  std::string flush();

 private:
  const Tokenizer& tokenizer_;
  DecodeOptions options_;
  std::string held_;
};

}  // namespace essh
