#include "essh/text/bpe_tokenizer.h"

#include <algorithm>
#include <array>

#include "essh/base/error.h"
#include "essh/base/utf8.h"
#include "essh/text/byte_alphabet.h"
#include "essh/text/tokenizer_json.h"

namespace essh {
namespace {

constexpr std::size_t kMaxAddedTokens = 1 << 17;
constexpr std::size_t kMaxAddedBytes = 4096;
constexpr std::size_t kMaxTextBytes = (std::size_t{1} << 31) - 1;

bool has_token(const BpeSpec& spec, TokenId id) {
  if (id >= 0 && static_cast<std::size_t>(id) < spec.vocab.size() && spec.vocab[static_cast<std::size_t>(id)].present)
    return true;
  return std::any_of(spec.added.begin(), spec.added.end(), [id](const AddedToken& token) { return token.id == id; });
}

void check_added(const BpeSpec& spec, const std::string& place) {
  if (spec.added.size() > kMaxAddedTokens) {
    fail(ErrorKind::BadFile, "{}: {} added tokens, the limit is {}", place, spec.added.size(), kMaxAddedTokens);
  }
  std::unordered_map<std::string_view, TokenId> contents;
  std::unordered_map<TokenId, std::string_view> ids;
  for (const AddedToken& token : spec.added) {
    const std::string shown = in_quotes(token.content);
    if (token.content.empty() || token.content.size() > kMaxAddedBytes) {
      fail(ErrorKind::BadFile, "{}: added token {} must have 1 to {} bytes, it has {}", place, token.id, kMaxAddedBytes,
           token.content.size());
    }
    if (token.id < 0 || token.id >= kMaxVocabulary) {
      fail(ErrorKind::BadFile, "{}: added token {} has the id {}; ids go from 0 to {}", place, shown, token.id,
           kMaxVocabulary - 1);
    }
    if (!contents.emplace(token.content, token.id).second) {
      fail(ErrorKind::BadFile, "{}: added token {} occurs twice", place, shown);
    }
    if (!ids.emplace(token.id, token.content).second) {
      fail(ErrorKind::BadFile, "{}: the id {} belongs to two added tokens, {} and {}", place, token.id, shown,
           in_quotes(ids[token.id]));
    }
  }
}

void check_merges(const BpeSpec& spec, const std::string& place) {
  std::vector<std::pair<std::uint64_t, std::size_t>> pairs;
  pairs.reserve(spec.merges.size());
  for (std::size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const BpeMerge& merge = spec.merges[rank];
    for (const TokenId id : {merge.left, merge.right, merge.result}) {
      if (id < 0 || static_cast<std::size_t>(id) >= spec.vocab.size() ||
          !spec.vocab[static_cast<std::size_t>(id)].present) {
        fail(ErrorKind::BadFile, "{}: merge {} names the id {}, which is no token", place, rank, id);
      }
    }
    const auto& left = spec.vocab[static_cast<std::size_t>(merge.left)];
    const auto& right = spec.vocab[static_cast<std::size_t>(merge.right)];
    const auto& result = spec.vocab[static_cast<std::size_t>(merge.result)];
    if (!left.literal && !right.literal &&
        (result.bytes.size() != left.bytes.size() + right.bytes.size() || !result.bytes.starts_with(left.bytes) ||
         !result.bytes.ends_with(right.bytes))) {
      fail(ErrorKind::BadFile, "{}: merge {} gives a token that is not its two parts together", place, rank);
    }
    pairs.emplace_back(
        std::uint64_t{static_cast<std::uint32_t>(merge.left)} << 32 | static_cast<std::uint32_t>(merge.right), rank);
  }
  std::sort(pairs.begin(), pairs.end());
  for (std::size_t i = 1; i < pairs.size(); ++i) {
    if (pairs[i].first == pairs[i - 1].first) {
      fail(ErrorKind::BadFile, "{}: merges {} and {} are the same pair", place, pairs[i - 1].second, pairs[i].second);
    }
  }
}

BpeSpec checked(BpeSpec spec, const std::string& place) {
  if (spec.vocab.empty() || spec.vocab.size() > kMaxVocabulary) {
    fail(ErrorKind::BadFile, "{}: {} vocabulary entries; 1 to {} are possible", place, spec.vocab.size(),
         kMaxVocabulary);
  }
  check_added(spec, place);
  check_merges(spec, place);
  for (const auto* list : {&spec.prefix, &spec.suffix}) {
    for (const TokenId id : *list) {
      if (!has_token(spec, id))
        fail(ErrorKind::BadFile, "{}: the post-processor adds the id {}, which is no token", place, id);
    }
  }
  return spec;
}

std::array<TokenId, 256> byte_ids(const BpeSpec& spec) {
  std::array<TokenId, 256> ids;
  ids.fill(-1);
  for (std::size_t id = 0; id < spec.vocab.size(); ++id) {
    const VocabEntry& entry = spec.vocab[id];
    if (entry.present && !entry.literal && entry.bytes.size() == 1) {
      ids[static_cast<std::uint8_t>(entry.bytes.front())] = static_cast<TokenId>(id);
    }
  }
  return ids;
}

AddedTokenFinder finder(const BpeSpec& spec, bool normalized) {
  std::vector<AddedToken> chosen;
  std::copy_if(spec.added.begin(), spec.added.end(), std::back_inserter(chosen),
               [normalized](const AddedToken& token) { return token.normalized == normalized; });
  return AddedTokenFinder(std::move(chosen));
}

}  // namespace

BpeTokenizer::BpeTokenizer(BpeSpec spec, const std::string& place)
    : spec_(checked(std::move(spec), place)),
      pretokenizer_(spec_.steps, place),
      bpe_(byte_ids(spec_), spec_.merges),
      plain_added_(finder(spec_, false)),
      normalized_added_(finder(spec_, true)) {
  std::size_t size = spec_.vocab.size();
  for (const AddedToken& token : spec_.added) size = std::max(size, static_cast<std::size_t>(token.id) + 1);
  tokens_.resize(size);
  words_.reserve(spec_.vocab.size());
  for (std::size_t id = 0; id < spec_.vocab.size(); ++id) {
    const VocabEntry& entry = spec_.vocab[id];
    if (!entry.present) continue;
    tokens_[id].bytes = entry.bytes;
    if (!entry.literal && !words_.emplace(entry.bytes, static_cast<TokenId>(id)).second) {
      fail(ErrorKind::BadFile, "{}: the ids {} and {} are the same token", place, words_[entry.bytes], id);
    }
  }
  for (const AddedToken& token : spec_.added) {
    // The vocabulary may contain the same text, in the byte alphabet; its id must then be the same.
    const auto written = from_byte_alphabet(token.content);
    const auto other = written ? words_.find(*written) : words_.end();
    Known& known = tokens_[static_cast<std::size_t>(token.id)];
    if ((other != words_.end() && other->second != token.id) ||
        (!known.bytes.empty() && known.bytes != token.content && known.bytes != written)) {
      fail(ErrorKind::BadFile, "{}: added token {} has the id {}, which the vocabulary gives otherwise", place,
           in_quotes(token.content), token.id);
    }
    known = {token.content, token.special};
  }
  bos_ = spec_.bos;
  eos_ = spec_.eos;
}

void BpeTokenizer::encode(std::string_view text, std::vector<TokenId>& ids, EncodeOptions options) const {
  if (text.size() > kMaxTextBytes) {
    fail(ErrorKind::Usage, "a text of {} bytes is too long for one piece; cut it into documents below 2 GiB",
         text.size());
  }
  auto scratch = scratch_.borrow();
  const auto compute = [&](std::string_view word, std::vector<TokenId>& out) {
    if (spec_.ignore_merges) {
      if (const auto whole = words_.find(word); whole != words_.end()) {
        out.push_back(whole->second);
        return;
      }
    }
    bpe_.encode(word, *scratch, out);
  };
  const auto on_word = [&](std::string_view word) { Bpe::encode_cached(word, *scratch, ids, compute); };
  const auto on_text = [&](std::string_view piece) { pretokenizer_.for_each_word(piece, on_word); };
  const auto on_token = [&](TokenId id) { ids.push_back(id); };
  const bool parse = options.parse_special_tokens;
  if (options.add_special_tokens) ids.insert(ids.end(), spec_.prefix.begin(), spec_.prefix.end());
  plain_added_.split(
      text, parse, [&](std::string_view piece) { normalized_added_.split(piece, parse, on_text, on_token); }, on_token);
  if (options.add_special_tokens) ids.insert(ids.end(), spec_.suffix.begin(), spec_.suffix.end());
}

std::string_view BpeTokenizer::token_bytes(TokenId id) const {
  check_id(id);
  return tokens_[static_cast<std::size_t>(id)].bytes;
}

bool BpeTokenizer::is_special(TokenId id) const {
  check_id(id);
  return tokens_[static_cast<std::size_t>(id)].special;
}

std::optional<TokenId> BpeTokenizer::token_id(std::string_view bytes) const {
  for (const AddedToken& token : spec_.added) {
    if (token.content == bytes) return token.id;
  }
  const auto found = words_.find(bytes);
  return found == words_.end() ? std::nullopt : std::optional(found->second);
}

int BpeTokenizer::bytes_without_token() const {
  const auto ids = byte_ids(spec_);
  return static_cast<int>(std::count(ids.begin(), ids.end(), -1));
}

void BpeTokenizer::set_text_ends(std::optional<TokenId> bos, std::optional<TokenId> eos) {
  bos_ = spec_.bos = bos;
  eos_ = spec_.eos = eos;
}

std::string BpeTokenizer::to_json() const {
  return write_tokenizer_json(spec_);
}

void guess_text_ends(BpeSpec& spec) {
  const auto first_of = [&](std::initializer_list<std::string_view> names) -> std::optional<TokenId> {
    for (const std::string_view name : names) {
      for (const AddedToken& token : spec.added) {
        if (token.special && token.content == name) return token.id;
      }
    }
    return std::nullopt;
  };
  if (!spec.eos)
    spec.eos = first_of({"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]", "[SEP]"});
  if (!spec.bos) spec.bos = first_of({"<|begin_of_text|>", "<s>", "<bos>", "<|bos|>", "[BOS]", "<|endoftext|>"});
}

}  // namespace essh
