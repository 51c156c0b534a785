#include "essh/text/tokenizer_json.h"

#include <gtest/gtest.h>

#include "essh/base/error.h"
#include "essh/base/json.h"

namespace essh {
namespace {

// Three letters, two merges, one special token, GPT-2's pattern.
Json small_file() {
  return parse_json(R"({
    "version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [{"id": 5, "content": "<|end|>", "single_word": false, "lstrip": false, "rstrip": false,
                      "normalized": false, "special": true}],
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
    "post_processor": null,
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4}, "merges": ["a b", ["ab", "c"]]}
  })",
                    "small");
}

std::string message(const Json& file, ErrorKind kind = ErrorKind::BadFile) {
  try {
    read_tokenizer_json(to_text(file), "here");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  return "accepted";
}

TEST(TokenizerJson, ReadsBothFormsOfMerges) {
  const auto tokenizer = read_tokenizer_json(to_text(small_file()), "here");
  EXPECT_EQ(tokenizer->encode("abcab<|end|>c"), (std::vector<TokenId>{4, 3, 5, 2}));
  EXPECT_EQ(tokenizer->vocab_size(), 6);
  EXPECT_TRUE(tokenizer->is_special(5));
  EXPECT_EQ(tokenizer->token_id("abc"), std::optional<TokenId>(4));
}

TEST(TokenizerJson, LeavesOutBytesWithoutToken) {
  EXPECT_EQ(read_tokenizer_json(to_text(small_file()), "here")->encode("axb"), (std::vector<TokenId>{3}));
}

TEST(TokenizerJson, IgnoresMergesOnlyWhenAsked) {
  Json file = small_file();
  file["model"]["vocab"]["cab"] = 6;
  EXPECT_EQ(read_tokenizer_json(to_text(file), "here")->encode("cab"), (std::vector<TokenId>{2, 3}));
  file["model"]["ignore_merges"] = true;
  EXPECT_EQ(read_tokenizer_json(to_text(file), "here")->encode("cab"), (std::vector<TokenId>{6}));
}

// Fault M9: invalid tokenizer files.
TEST(TokenizerJson, NamesWhatIsWrong) {
  const auto with = [](auto change) {
    Json file = small_file();
    change(file);
    return message(file);
  };
  EXPECT_EQ(with([](Json& f) { f["model"]["vocab"]["b"] = 0; }),
            "here: tokenizer.model.vocab: two tokens have the id 0");
  EXPECT_EQ(with([](Json& f) { f["model"]["vocab"]["b"] = -1; }),
            "here: tokenizer.model.vocab: the id -1 is not between 0 and 4194303");
  EXPECT_EQ(with([](Json& f) { f["model"]["vocab"]["b"] = 4194304; }),
            "here: tokenizer.model.vocab: the id 4194304 is not between 0 and 4194303");
  EXPECT_EQ(with([](Json& f) { f["model"]["vocab"]["b"] = "1"; }),
            "here: tokenizer.model.vocab: an id must be a whole number");
  EXPECT_EQ(with([](Json& f) { f["model"]["vocab"][""] = 9; }),
            "here: tokenizer.model.vocab: the token of id 9 is empty");
  EXPECT_EQ(with([](Json& f) { f["model"]["merges"].push_back("a b"); }), "here: merges 0 and 2 are the same pair");
  EXPECT_EQ(with([](Json& f) { f["model"]["merges"].push_back("a  b"); }),
            "here: tokenizer.model.merges[2] must be two tokens, \"a b\" or [\"a\", \"b\"]");
  EXPECT_EQ(with([](Json& f) { f["model"]["merges"].push_back("c a"); }),
            "here: tokenizer.model.merges[2]: \"ca\" is not in the vocabulary");
  EXPECT_EQ(with([](Json& f) { f["added_tokens"][0]["id"] = 4; }),
            "here: added token \"<|end|>\" has the id 4, which the vocabulary gives otherwise");
  EXPECT_EQ(with([](Json& f) { f["added_tokens"][0]["content"] = "ab"; }),
            "here: added token \"ab\" has the id 5, which the vocabulary gives otherwise");
  EXPECT_EQ(with([](Json& f) { f["added_tokens"].push_back(f["added_tokens"][0]); }),
            "here: added token \"<|end|>\" occurs twice");
  EXPECT_EQ(with([](Json& f) { f["added_tokens"][0]["lstrip"] = 1; }),
            "here: tokenizer.added_tokens[0].lstrip must be true or false");
  EXPECT_EQ(with([](Json& f) {
              f["post_processor"] = {{"type", "TemplateProcessing"}, {"single", Json::array()}};
            }),
            "here: tokenizer.post_processor.single must hold the sequence A once");
  EXPECT_EQ(with([](Json& f) { f.erase("model"); }), "here: tokenizer.model must be an object");
  EXPECT_EQ(with([](Json& f) { f["model"].erase("merges"); }), "here: tokenizer.model.merges must be a list");
  EXPECT_EQ(with([](Json& f) { f = Json::array(); }), "here: expected a JSON object");
}

TEST(TokenizerJson, NamesWhatIsNotSupported) {
  const auto with = [](const char* part, Json value) {
    Json file = small_file();
    file[part] = std::move(value);
    return message(file, ErrorKind::Unsupported);
  };
  EXPECT_EQ(
      with("normalizer", {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}}}}),
      "here: tokenizer.normalizer.normalizers[0]: \"NFC\" is not supported; only tokenizers without a normalizer are");
  EXPECT_EQ(
      with("pre_tokenizer", nullptr),
      "here: tokenizer.pre_tokenizer: only byte-level tokenizers are supported; it does not end in \"ByteLevel\"");
  EXPECT_EQ(with("pre_tokenizer", {{"type", "Metaspace"}}),
            "here: tokenizer.pre_tokenizer: \"Metaspace\" is not supported; supported are \"Split\", \"Digits\" and "
            "\"ByteLevel\"");
  EXPECT_EQ(with("model", {{"type", "Unigram"}}),
            "here: tokenizer.model: \"Unigram\" is not supported; only byte-level \"BPE\" models are");
  EXPECT_EQ(with("decoder", {{"type", "Metaspace"}}),
            "here: tokenizer.decoder: \"Metaspace\" is not supported; only \"ByteLevel\" is");
}

TEST(TokenizerJson, TwoMillionMergesAreReadAndTheirRepetitionSeen) {
  std::string text =
      R"({"pre_tokenizer":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b")";
  for (int i = 0; i < 2'000'000; ++i) text += ",\"a b\"";
  text += "]}}";
  try {
    read_tokenizer_json(text, "here");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "here: merges 0 and 1 are the same pair");
  }
}

}  // namespace
}  // namespace essh
