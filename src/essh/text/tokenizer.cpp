#include "essh/text/tokenizer.h"

#include "essh/base/error.h"
#include "essh/base/file.h"
#include "essh/base/json.h"
#include "essh/base/log.h"
#include "essh/base/sha256.h"
#include "essh/base/utf8.h"
#include "essh/text/bpe_tokenizer.h"
#include "essh/text/tokenizer_json.h"
#include "essh/text/tokenizer_ranks.h"
#include "essh/text/utf8.h"

namespace essh {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxFileBytes = 64u << 20;

std::unique_ptr<Tokenizer> read_tokenizer_file(const fs::path& path) {
  const std::string place = path.string();
  const std::string text = read_text(path, kMaxFileBytes);
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) fail(ErrorKind::BadFile, "{}: the file is empty", place);
  if (text[first] == '{') return read_tokenizer_json(text, place);
  if (text.starts_with("#version")) return std::make_unique<BpeTokenizer>(read_vocab_bpe(text, place), place);
  const std::string_view line = std::string_view(text).substr(0, text.find('\n'));
  const std::size_t space = line.find(' ');
  if (space != std::string_view::npos && line.find_first_not_of("0123456789\r", space + 1) == std::string_view::npos) {
    return std::make_unique<BpeTokenizer>(read_rank_file(text, place), place);
  }
  fail(ErrorKind::Unsupported,
       "{}: no tokenizer that we know; expected a tokenizer.json, a tiktoken rank file or GPT-2's vocab.bpe "
       "(sentencepiece models are not supported)",
       place);
}

// tokenizer_config.json names the special tokens: "eos_token": "</s>", or an object with that "content".
std::optional<std::string> token_name(const Json& config, const char* key) {
  const auto found = config.find(key);
  if (found == config.end()) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  if (found->is_object()) {
    const auto content = found->find("content");
    if (content != found->end() && content->is_string()) return content->get<std::string>();
  }
  return std::nullopt;
}

std::unique_ptr<Tokenizer> read_tokenizer_folder(const fs::path& folder) {
  for (const char* name : {"tokenizer.json", "tokenizer.model", "vocab.bpe"}) {
    const fs::path path = folder / name;
    if (!fs::exists(path)) continue;
    auto tokenizer = read_tokenizer_file(path);
    const fs::path config_path = folder / "tokenizer_config.json";
    auto* bpe = dynamic_cast<BpeTokenizer*>(tokenizer.get());
    if (bpe == nullptr || !fs::exists(config_path)) return tokenizer;
    const Json config = read_json(config_path);
    if (!config.is_object()) fail(ErrorKind::BadFile, "{}: expected a JSON object", config_path.string());
    std::optional<TokenId> ends[2] = {tokenizer->bos(), tokenizer->eos()};
    const char* keys[2] = {"bos_token", "eos_token"};
    for (int i = 0; i < 2; ++i) {
      const auto text = token_name(config, keys[i]);
      if (!text) continue;
      ends[i] = tokenizer->token_id(*text);
      if (!ends[i]) {
        fail(ErrorKind::BadFile, "{}: {} {} is not in {}", config_path.string(), keys[i], in_quotes(*text),
             path.string());
      }
    }
    bpe->set_text_ends(ends[0], ends[1]);
    return tokenizer;
  }
  fail(ErrorKind::BadFile, "{}: no tokenizer.json, tokenizer.model or vocab.bpe in this folder", folder.string());
}

}  // namespace

std::vector<TokenId> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  std::vector<TokenId> ids;
  encode(text, ids, options);
  return ids;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, DecodeOptions options) const {
  std::string bytes;
  for (const TokenId id : ids) {
    const std::string_view token = token_bytes(id);
    if (options.skip_special_tokens && is_special(id)) continue;
    bytes.append(token);
  }
  return bytes;
}

void Tokenizer::check_id(TokenId id) const {
  if (id < 0 || id >= vocab_size()) {
    fail(ErrorKind::Usage, "the token id {} is not in this vocabulary of {} entries", id, vocab_size());
  }
}

const std::string& Tokenizer::hash() const {
  std::call_once(hashed_, [this] {
    hash_ = sha256_of_text(fmt::format("{}bos {} eos {}\n", to_json(), bos_.value_or(-1), eos_.value_or(-1)));
  });
  return hash_;
}

std::unique_ptr<Tokenizer> load_tokenizer(const fs::path& path) {
  if (!fs::exists(path)) {
    if (path == "bytes") return make_byte_tokenizer();
    if (path == "nucleotides") return make_nucleotide_tokenizer();
  }
  auto tokenizer = fs::is_directory(path) ? read_tokenizer_folder(path) : read_tokenizer_file(path);
  const auto* bpe = dynamic_cast<const BpeTokenizer*>(tokenizer.get());
  if (const int missing = bpe != nullptr ? bpe->bytes_without_token() : 0) {
    log::warn("{}: {} of the 256 bytes have no token; they are left out of what is encoded", path.string(), missing);
  }
  return tokenizer;
}

std::unique_ptr<Tokenizer> make_byte_tokenizer() {
  BpeSpec spec;
  for (int byte = 0; byte < 256; ++byte) spec.vocab.push_back({std::string(1, static_cast<char>(byte)), true, false});
  spec.steps = {ByteLevelStep{.add_prefix_space = false, .use_regex = false}};
  AddedToken end;
  end.id = 256;
  end.content = "<|endoftext|>";
  end.special = true;
  spec.added.push_back(end);
  guess_text_ends(spec);
  return std::make_unique<BpeTokenizer>(std::move(spec), "bytes");
}

void save_tokenizer(const Tokenizer& tokenizer, const fs::path& folder) {
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}};
  if (tokenizer.bos()) config["bos_token"] = std::string(tokenizer.token_bytes(*tokenizer.bos()));
  if (tokenizer.eos()) config["eos_token"] = std::string(tokenizer.token_bytes(*tokenizer.eos()));
  write_durably(folder / "tokenizer.json", tokenizer.to_json());
  write_durably(folder / "tokenizer_config.json", to_text(config, 2) + "\n");
}

std::string StreamDecoder::add(TokenId id) {
  const std::string_view bytes = tokenizer_.token_bytes(id);
  if (options_.skip_special_tokens && tokenizer_.is_special(id)) return {};
  held_.append(bytes);
  std::string text;
  std::size_t at = 0;
  while (at < held_.size()) {
    const Utf8Char found = utf8_char(held_, at);
    if (found.cut) break;
    text.append(found.valid ? std::string_view(held_).substr(at, found.length) : kReplacementChar);
    at += found.length;
  }
  held_.erase(0, at);
  return text;
}

std::string StreamDecoder::flush() {
  const std::string text = to_valid_utf8(held_);
  held_.clear();
  return text;
}

}  // namespace essh
