#include "essh/text/tokenizer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "essh/base/error.h"
#include "essh/base/file.h"
#include "essh/base/rng.h"
#include "essh/text/bpe_trainer.h"
#include "essh/text/utf8.h"

namespace essh {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSample =
    "The quick brown fox doesn't jump over the lazy dog; the dog doesn't mind.\n\n"
    "    for (int i = 0; i < 10; ++i) { total += i; }\r\n\xC3\xA9t\xC3\xA9 \xF0\x9F\x98\x80 1234567\n";

BpeSpec trained(const std::string& pattern) {
  BpeWordCounter counter(pattern, {"<|endoftext|>"}, 1000, 1);
  for (int i = 0; i < 5; ++i) counter.add_text(kSample);
  return train_bpe(counter.take(), {.vocab_size = 400, .pattern = pattern, .special_tokens = {"<|endoftext|>"}});
}

std::string random_bytes(Rng& rng) {
  std::string text;
  for (std::uint64_t i = rng.below(200); i > 0; --i) {
    switch (rng.below(4)) {
      case 0:
        text.push_back(static_cast<char>(rng.below(256)));
        break;
      case 1:
        append_utf8(text, static_cast<char32_t>(rng.below(0xD800)));
        break;
      case 2:
        text += kSample.substr(rng.below(kSample.size()), rng.below(20));
        break;
      default:
        text += rng.below(8) == 0 ? "<|endoftext|>" : " ";
        break;
    }
  }
  return text;
}

class TempFolder {
 public:
  TempFolder() {
    std::string name = (fs::temp_directory_path() / "essh_tokenizer_XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TempFolder() { fs::remove_all(path_); }
  fs::path operator/(const char* name) const { return path_ / name; }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

TEST(Tokenizer, AnyBytesComeBack) {
  Rng rng(3);
  for (const char* pattern : {"gpt2", "llama3"}) {
    const BpeTokenizer tokenizer(trained(pattern), "trained");
    for (int round = 0; round < 500; ++round) {
      const std::string text = random_bytes(rng);
      for (const bool parse : {true, false}) {
        const auto ids = tokenizer.encode(text, {.parse_special_tokens = parse});
        ASSERT_EQ(tokenizer.decode(ids), text);
        ASSERT_TRUE(parse || std::count(ids.begin(), ids.end(), *tokenizer.eos()) == 0);
      }
    }
  }
}

TEST(Tokenizer, FilesGiveTheSameTokenizer) {
  const TempFolder folder;
  const BpeTokenizer tokenizer(trained("llama3"), "trained");
  save_tokenizer(tokenizer, folder.path());
  for (const auto& path : {folder.path(), folder / "tokenizer.json"}) {
    const auto again = load_tokenizer(path);
    EXPECT_EQ(again->hash(), tokenizer.hash());
    EXPECT_EQ(again->to_json(), tokenizer.to_json());
    EXPECT_EQ(again->encode(kSample), tokenizer.encode(kSample));
    EXPECT_EQ(again->eos(), std::optional<TokenId>(0));
  }
  EXPECT_NE(BpeTokenizer(trained("gpt2"), "trained").hash(), tokenizer.hash());
}

TEST(Tokenizer, ConfigNamesTheEndsOfText) {
  const TempFolder folder;
  BpeSpec spec = trained("gpt2");
  AddedToken extra;
  extra.id = static_cast<TokenId>(spec.vocab.size());
  extra.content = "<|stop|>";
  extra.special = true;
  spec.added.push_back(extra);
  save_tokenizer(BpeTokenizer(spec, "trained"), folder.path());
  write_durably(folder / "tokenizer_config.json", R"({"eos_token": {"content": "<|stop|>"}, "bos_token": null})");
  const auto tokenizer = load_tokenizer(folder.path());
  EXPECT_EQ(tokenizer->eos(), std::optional(extra.id));
  EXPECT_NE(tokenizer->hash(), BpeTokenizer(spec, "trained").hash());
  write_durably(folder / "tokenizer_config.json", R"({"eos_token": "<|nothing|>"})");
  EXPECT_THROW(load_tokenizer(folder.path()), Error);
}

TEST(Tokenizer, Bytes) {
  const auto tokenizer = load_tokenizer("bytes");
  EXPECT_EQ(tokenizer->vocab_size(), 257);
  EXPECT_EQ(tokenizer->eos(), std::optional<TokenId>(256));
  std::string all;
  std::vector<TokenId> expected;
  for (int byte = 255; byte >= 0; --byte) {
    all.push_back(static_cast<char>(byte));
    expected.push_back(byte);
  }
  EXPECT_EQ(tokenizer->encode(all), expected);
  EXPECT_EQ(tokenizer->decode(expected), all);
  EXPECT_EQ(tokenizer->encode("a<|endoftext|>"), (std::vector<TokenId>{'a', 256}));
}

TEST(Tokenizer, Nucleotides) {
  const auto tokenizer = load_tokenizer("nucleotides");
  EXPECT_EQ(tokenizer->vocab_size(), 12);
  EXPECT_EQ(tokenizer->encode("ACGTNacgtnUu\nRY -\xC3\xA9", {.add_special_tokens = true}),
            (std::vector<TokenId>{2, 7, 8, 9, 10, 11, 7, 8, 9, 10, 11, 10, 10, 11, 11, 6, 6, 1}));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("acgtNNu")), "ACGTNNT");
  const TempFolder folder;
  save_tokenizer(*tokenizer, folder.path());
  EXPECT_EQ(load_tokenizer(folder.path())->hash(), tokenizer->hash());
}

TEST(Tokenizer, StreamsNeverCutACharacter) {
  Rng rng(9);
  const BpeTokenizer tokenizer(trained("gpt2"), "trained");
  for (int round = 0; round < 500; ++round) {
    std::vector<TokenId> ids;
    for (std::uint64_t i = rng.below(60); i > 0; --i)
      ids.push_back(static_cast<TokenId>(rng.below(static_cast<std::uint64_t>(tokenizer.vocab_size()))));
    for (const bool skip : {false, true}) {
      StreamDecoder stream(tokenizer, {.skip_special_tokens = skip});
      std::string text;
      for (const TokenId id : ids) {
        const std::string piece = stream.add(id);
        ASSERT_EQ(to_valid_utf8(piece), piece);
        text += piece;
      }
      text += stream.flush();
      ASSERT_EQ(text, to_valid_utf8(tokenizer.decode(ids, {.skip_special_tokens = skip})));
    }
  }
  const auto bytes = make_byte_tokenizer();
  StreamDecoder stream(*bytes);
  for (const TokenId byte : {0xF0, 0x9F, 0x98}) EXPECT_EQ(stream.add(byte), "");
  EXPECT_EQ(stream.add(0x80), "\xF0\x9F\x98\x80");
  EXPECT_EQ(stream.add(0xE2), "");
  EXPECT_EQ(stream.flush(), kReplacementChar);
  EXPECT_EQ(stream.flush(), "");
}

TEST(Tokenizer, IdsOutsideTheVocabularyAreErrors) {
  const auto tokenizer = make_byte_tokenizer();
  for (const TokenId id : {-1, 257, 1 << 30}) {
    EXPECT_THROW(tokenizer->decode(std::vector<TokenId>{id}), Error);
    EXPECT_THROW(StreamDecoder(*tokenizer).add(id), Error);
  }
}

TEST(Tokenizer, ThreadsShareOne) {
  const BpeTokenizer tokenizer(trained("llama3"), "trained");
  const auto expected = tokenizer.encode(kSample);
  const std::string hash = BpeTokenizer(trained("llama3"), "trained").hash();
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (int& mine : wrong) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) mine += tokenizer.encode(kSample) != expected || tokenizer.hash() != hash;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST(Tokenizer, FilesThatAreNoTokenizerAreNamed) {
  const TempFolder folder;
  const auto message = [&](std::string_view content) -> std::string {
    write_durably(folder / "file", content);
    try {
      load_tokenizer(folder / "file");
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find((folder / "file").string()), std::string::npos);
      return error.what();
    }
    return "accepted";
  };
  const auto says = [&](std::string_view content, std::string_view word) {
    const std::string text = message(content);
    EXPECT_NE(text.find(word), std::string::npos) << text;
  };
  says("", "empty");
  says("\n\x08\x01sentencepiece", "sentencepiece models are not supported");
  says("IQ== 0\nIg== 1\n", "2 ranks");
  says("IQ== 0\nIg== 0\n", "the rank 0 occurs twice");
  says("IQ== 0\nIg== 2\n", "no token has the rank 1");
  says("IQ== 0\n!!!! 1\n", ":2: expected a token in base64");
  says("IQ== 0\nIg== -1\n", ":2: expected a token in base64");
  says("IQ== 0\nIg== 99999999999\n", ":2: expected a token in base64");
  says("#version: 0.2\na b\nab c\nxy z\n", ":4: merges a token that no line before it has made");
  says("#version: 0.2\na b\na b\n", ":3: makes a token that there is already");
  says("#version: 0.2\nab\n", ":2: expected two tokens");
  EXPECT_EQ(message("#version: 0.2\na b\nab c\n"), "accepted");
  EXPECT_THROW(load_tokenizer(folder.path()), Error);
  EXPECT_THROW(load_tokenizer(folder / "absent"), Error);
}

}  // namespace
}  // namespace essh
