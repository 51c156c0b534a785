#include "essh/evaluate/evaluation_text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "essh/base/log.h"
#include "essh/data/document_block.h"
#include "essh/data/prepare.h"
#include "tests/store/temp_folder.h"

namespace essh {
namespace {

constexpr auto kAll = std::numeric_limits<std::int64_t>::max();

struct EvaluationTextTest : TempFolderTest {
  std::unique_ptr<Tokenizer> bytes = make_byte_tokenizer();

  void SetUp() override {
    log::set_level(log::Level::Quiet);
    TempFolderTest::SetUp();
  }
  std::filesystem::path write(const std::string& name, std::string_view text) {
    write_durably(folder / name, text);
    return folder / name;
  }
  static std::vector<TokenId> all(const EvaluationText& text) {
    std::vector<TokenId> tokens(static_cast<std::size_t>(text.tokens()));
    text.read(0, tokens);
    return tokens;
  }
  // Data whose tokens are the bytes of `text`, all in the validation split.
  std::filesystem::path prepare_bytes(const std::string& text) {
    PrepareOptions options;
    options.inputs = {write("source.txt", text).string()};
    options.folder = folder / "data";
    options.valid_fraction = 1 - 1e-12;
    prepare(options,
            {.format = {.tokenizer_hash = bytes->hash(), .vocab_size = bytes->vocab_size()},
             .eos_id = *bytes->eos(),
             .encode = [&](std::string_view piece, std::vector<std::int32_t>& out) { bytes->encode(piece, out); }});
    return folder / "data";
  }
};

TEST_F(EvaluationTextTest, EachDocumentIsFollowedByTheEndOfText) {
  const auto first = write("a.txt", "\nab\n\nc\n<|endoftext|>\n\n<|endoftext|>\nd<|endoftext|>\n");
  const auto second = write("b.txt", "e");
  const auto text = EvaluationText::from_files({first, second}, *bytes, 256, kAll);
  // The bytes between the separator lines, as `prepare` reads them.
  std::vector<TokenId> expected = {'\n', 'a', 'b', '\n', '\n', 'c', '\n', 256, '\n', 256, 'd'};
  for (const char c : std::string_view("<|endoftext|>\n")) expected.push_back(c);
  for (const TokenId token : {256, int{'e'}, 256}) expected.push_back(token);
  EXPECT_EQ(all(text), expected);
  EXPECT_EQ(text.bytes(all(text)), 7 + 1 + 15 + 1) << "ends of text stand for no bytes";
  EXPECT_EQ(EvaluationText::from_files({first, second}, *bytes, 256, 3).tokens(), 3);
}

TEST_F(EvaluationTextTest, LineBreaksJoinDocumentsForOtherDomains) {
  const auto first = write("a.txt", "ab\n<|endoftext|>\nc"), second = write("b.txt", "e");
  const auto join = [&](std::int64_t most) {
    return EvaluationText::from_files({first, second}, *bytes, 256, most, DocumentJoin::Newline);
  };
  EXPECT_EQ(all(join(kAll)), (std::vector<TokenId>{'a', 'b', '\n', '\n', 'c', '\n', 'e'}));
  EXPECT_EQ(join(kAll).bytes(all(join(kAll))), 7);
  EXPECT_EQ(join(4).tokens(), 4);
  EXPECT_NE(join(4).fingerprint(), join(5).fingerprint());
  EXPECT_EQ(join(4).fingerprint(), EvaluationText::from_tokens({'a', 'b', '\n', '\n'}, "x").fingerprint());
  // Files longer than one piece are read without a gap.
  std::string lines;
  while (lines.size() < 3 * kPieceBytes) lines += "some words of one line\n";
  const auto tokens =
      all(EvaluationText::from_files({write("long.txt", lines)}, *bytes, 256, kAll, DocumentJoin::Newline));
  EXPECT_TRUE(std::ranges::equal(tokens, lines));
  const auto data = prepare_bytes("abc\n");
  EXPECT_NE(message_of([&] {
              EvaluationText::open({data}, folder, "", 256, kAll, DocumentJoin::Newline);
            }).find("give the files"),
            std::string::npos);
}

TEST_F(EvaluationTextTest, ADatasetGivesItsValidationSplit) {
  const auto data = prepare_bytes("abcde\n<|endoftext|>\nfg\n");
  const auto text = EvaluationText::open({data}, folder, "", 256, kAll);
  EXPECT_EQ(all(text), (std::vector<TokenId>{'a', 'b', 'c', 'd', 'e', '\n', 256, 'f', 'g', '\n', 256}));
  EXPECT_DOUBLE_EQ(text.bytes(all(text)), 9);
}

TEST_F(EvaluationTextTest, ModelsWithOneTokenizerShareAText) {
  const auto file = write("a.txt", "ACGT"), other = write("b.txt", "AC");
  for (const char* name : {"one", "two", "nucleotides"}) std::filesystem::create_directory(folder / name);
  save_tokenizer(*bytes, folder / "one");
  save_tokenizer(*bytes, folder / "two");
  save_tokenizer(*make_nucleotide_tokenizer(), folder / "nucleotides");
  SharedTexts texts;
  const auto& first = texts.open({file}, folder / "one", "", 256, kAll);
  const auto& second = texts.open({file}, folder / "two", "", 256, kAll);
  EXPECT_EQ(&second, &first);
  // Every option that changes the tokens opens another text.
  EXPECT_EQ(all(texts.open({file}, folder / "one", "", 0, kAll)).back(), 0);
  EXPECT_EQ(texts.open({file}, folder / "one", "", 256, 2).tokens(), 2);
  EXPECT_EQ(texts.open({file}, folder / "one", "", 256, kAll, DocumentJoin::Newline).tokens(), 4);
  EXPECT_EQ(texts.open({file, other}, folder / "one", "", 256, kAll).tokens(), 8);
  const auto& nucleotides = texts.open({file}, folder / "nucleotides", "", 256, kAll);
  EXPECT_NE(nucleotides.tokenizer_hash(), first.tokenizer_hash());
  EXPECT_EQ(&texts.open({file}, folder / "one", (folder / "nucleotides").string(), 256, kAll), &nucleotides);
  EXPECT_EQ(all(first), (std::vector<TokenId>{'A', 'C', 'G', 'T', 256}));
}

TEST_F(EvaluationTextTest, MistakesAreNamed) {
  const auto data = prepare_bytes("abc\n");
  save_tokenizer(*make_nucleotide_tokenizer(), folder);
  const auto message = [&](std::vector<std::filesystem::path> words, const std::filesystem::path& model) {
    return message_of([&] { EvaluationText::open(words, model, "", 256, kAll); });
  };
  EXPECT_NE(message({data}, folder).find("another tokenizer"), std::string::npos) << message({data}, folder);
  EXPECT_NE(message({data, data}, folder).find("one prepared folder"), std::string::npos);
  EXPECT_NE(message({folder / "source.txt"}, folder / "data").find("no tokenizer.json"), std::string::npos);
  EXPECT_NE(message({folder / "absent.txt"}, folder).find("absent.txt"), std::string::npos);
  const auto bad = write("bad.jsonl", "{\"text\": \"AC\"}\n{\"text\": 4}\n");
  EXPECT_NE(message({bad}, folder).find("line 2"), std::string::npos) << message({bad}, folder);
}

}  // namespace
}  // namespace essh
