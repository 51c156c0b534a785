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
  // Put what the file's post-processor puts around a text (a beginning-of-text token, say).
  bool add_special_tokens = false;
  // Read "<|endoftext|>" and the like inside the text as those tokens. Off for text from strangers: it stays text.
  bool parse_special_tokens = true;
};

struct DecodeOptions {
  bool skip_special_tokens = false;
};

// Text to ids and back. Immutable: every const member may be called from any number of threads at once.
// Any bytes may be encoded: those that are not UTF-8 become the tokens of their bytes. For byte-level tokenizers
// without prefix space and stripping tokens, decode(encode(x)) == x for every x.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Appends the ids of `text` to `ids`. Texts of 2 GiB and more are refused.
  virtual void encode(std::string_view text, std::vector<TokenId>& ids, EncodeOptions options = {}) const = 0;
  std::vector<TokenId> encode(std::string_view text, EncodeOptions options = {}) const;

  // The bytes of the tokens, one after the other; they need not be UTF-8. An id that is no token is an error.
  std::string decode(std::span<const TokenId> ids, DecodeOptions options = {}) const;

  // One more than the largest id; ids without a token may lie below it.
  virtual std::int64_t vocab_size() const = 0;
  // What the token stands for. Empty for an id below vocab_size() that has none.
  virtual std::string_view token_bytes(TokenId id) const = 0;
  virtual bool is_special(TokenId id) const = 0;
  virtual std::optional<TokenId> token_id(std::string_view bytes) const = 0;

  std::optional<TokenId> bos() const { return bos_; }
  std::optional<TokenId> eos() const { return eos_; }

  // A tokenizer.json that this library and Hugging Face tokenizers read, with the same ids.
  virtual std::string to_json() const = 0;
  // SHA-256 of to_json() with the ends of text: equal for equal tokenizers, whatever file they came from.
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
//  - or, where no such file exists, by the names "bytes" and "nucleotides".
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& path);

// 256 bytes, id = byte, and <|endoftext|> = 256.
std::unique_ptr<Tokenizer> make_byte_tokenizer();
// Twelve entries; see tokenizer_nucleotide.h.
std::unique_ptr<Tokenizer> make_nucleotide_tokenizer();

// Writes tokenizer.json and tokenizer_config.json into an existing folder, each whole or not at all.
void save_tokenizer(const Tokenizer& tokenizer, const std::filesystem::path& folder);

// Text of a stream of tokens, never cut inside a character: bytes that may still become one are held back. What it
// gives, put together, is to_valid_utf8(decode(ids)). The tokenizer must outlive it.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, DecodeOptions options = {})
      : tokenizer_(tokenizer), options_(options) {}

  // The text that this token completes; may be empty.
  std::string add(TokenId id);
  // The rest: U+FFFD if a character was left unfinished.
  std::string flush();

 private:
  const Tokenizer& tokenizer_;
  DecodeOptions options_;
  std::string held_;
};

}  // namespace essh
