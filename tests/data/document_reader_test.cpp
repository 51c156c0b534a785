#include "essh/data/document_reader.h"

#include "essh/base/json.h"
#include "tests/data/corpus_fixture.h"

namespace essh {
namespace {

struct Documents {
  std::vector<std::string> texts;
  std::vector<std::size_t> pieces;  // per document
  std::vector<BadLine> bad;
  std::vector<std::pair<SourcePosition, std::size_t>> positions;  // with the documents before each
};

Documents read_all(const std::string& path, CorpusFormat format, SourcePosition start = {}) {
  const auto reader = open_document_reader(path, format, "text", start);
  Documents documents;
  Block block;
  bool inside = false;
  while (reader->read(block)) {
    decode_block(block, "text");
    EXPECT_LE(block.text.size(), kBlockBytes + 2 * kPieceBytes);
    for (const auto& piece : block.pieces) {
      EXPECT_LE(piece.size, kPieceBytes);
      EXPECT_EQ(piece.first, !inside);
      if (piece.first) {
        documents.texts.emplace_back();
        documents.pieces.push_back(0);
      }
      documents.texts.back() += block.text.substr(piece.begin, piece.size);
      ++documents.pieces.back();
      inside = !piece.last;
    }
    documents.bad.insert(documents.bad.end(), block.bad_lines.begin(), block.bad_lines.end());
    if (block.resumable) {
      EXPECT_FALSE(inside);
      documents.positions.push_back({block.end, documents.texts.size()});
    }
    block.clear();
  }
  EXPECT_FALSE(inside);
  return documents;
}

void expect_resumable(const std::string& path, CorpusFormat format, const Documents& all, std::size_t least) {
  EXPECT_GE(all.positions.size(), least);
  for (const auto& [position, before] : all.positions) {
    const auto rest = read_all(path, format, position);
    EXPECT_TRUE(std::equal(rest.texts.begin(), rest.texts.end(),
                           all.texts.begin() + static_cast<std::ptrdiff_t>(before), all.texts.end()));
  }
}

std::string as_line(const std::string& text) {
  return to_text(Json{{"id", 1}, {"text", text}}) + "\n";
}

struct DocumentReaderTest : CorpusTest {};

TEST_F(DocumentReaderTest, FormatOfName) {
  EXPECT_EQ(format_of_name("a/b.jsonl"), CorpusFormat::Jsonl);
  EXPECT_EQ(format_of_name("c4.json.gz"), CorpusFormat::Jsonl);
  EXPECT_EQ(format_of_name("x.FASTA.zst"), CorpusFormat::Fasta);
  EXPECT_EQ(format_of_name("x.parquet"), CorpusFormat::Parquet);
  EXPECT_EQ(format_of_name("vector"), CorpusFormat::Text);
  EXPECT_EQ(format_of_name("x.txt.gz"), CorpusFormat::Text);
}

TEST_F(DocumentReaderTest, TextWithSeparators) {
  const auto path =
      write("a.txt", "\xEF\xBB\xBFone\n\ntwo\n<|endoftext|>\n<|endoftext|>\r\nthree <|endoftext|> more\nlast");
  EXPECT_EQ(read_all(path, CorpusFormat::Text).texts,
            (std::vector<std::string>{"one\n\ntwo\n", "three <|endoftext|> more\nlast"}));
  EXPECT_TRUE(read_all(write("empty", ""), CorpusFormat::Text).texts.empty());
  EXPECT_TRUE(read_all(write("only", "<|endoftext|>\n<|endoftext|>"), CorpusFormat::Text).texts.empty());
}

TEST_F(DocumentReaderTest, TextResumesBetweenDocuments) {
  auto texts = random_documents(40, 50000, 200000);
  texts.push_back(random_documents(1, 5 * kPieceBytes, 5 * kPieceBytes)[0]);
  texts.push_back("x");
  std::string file;
  for (auto& text : texts) {
    text += "\n";
    file += text + "<|endoftext|>\n";
  }
  const auto path = write("a.txt", file);
  const auto all = read_all(path, CorpusFormat::Text);
  EXPECT_EQ(all.texts, texts);
  EXPECT_EQ(all.pieces.front(), 1u);
  EXPECT_GE(all.pieces[40], 5u);
  expect_resumable(path, CorpusFormat::Text, all, 4);
}

TEST_F(DocumentReaderTest, JsonlWithBadAndLongLines) {
  auto texts = random_documents(30, 10000, 100000);
  texts.push_back(random_documents(1, 3 * kPieceBytes, 3 * kPieceBytes)[0]);
  texts.push_back("after the long line");
  std::string file = "\n{\"text\": 3}\n" + as_line(texts[0]) + "  \r\nnonsense\n" + as_line("");
  for (std::size_t i = 1; i < texts.size(); ++i) file += as_line(texts[i]);
  file += "{\"text\": \"" + std::string(3 * kPieceBytes, 'x') + "\", oops}\n";
  file += "{\"text\": \"short\", \"other\": \"" + std::string(3 * kPieceBytes, 'x') + "\"}\n";
  file += "{\"text\": \"short too\", \"other\": \"" + std::string(3 * kPieceBytes, 'x') + "\"";
  const auto path = write("a.jsonl", file);
  const auto all = read_all(path, CorpusFormat::Jsonl);
  auto expected = texts;
  expected.push_back(std::string(3 * kPieceBytes, 'x'));  // found to be bad only after pieces of it were handed on
  expected.push_back("short");
  EXPECT_EQ(all.texts, expected);
  ASSERT_EQ(all.bad.size(), 4u);
  EXPECT_EQ(all.bad[0].number, 2u);
  EXPECT_EQ(all.bad[0].fault, LineFault::FieldNotString);
  EXPECT_EQ(all.bad[1].number, 5u);
  EXPECT_EQ(all.bad[1].fault, LineFault::NotObject);
  EXPECT_EQ(all.bad[2].number, 7 + texts.size() - 1);
  EXPECT_EQ(all.bad[3].number, 7 + texts.size() + 1);
  expect_resumable(path, CorpusFormat::Jsonl, all, 4);
}

TEST_F(DocumentReaderTest, Fasta) {
  const std::string chromosome(2 * kPieceBytes + 100, 'G');
  std::string file = "ACGT\nACGT\n>first record\nACGT\r\nNNac\n\n; comment\nTT\n>empty\n>long\n";
  for (std::size_t i = 0; i < chromosome.size(); i += 60) file += chromosome.substr(i, 60) + "\n";
  std::vector<std::string> texts = {"ACGTNNacTT", chromosome};
  for (int i = 0; i < 30; ++i) {
    texts.push_back(std::string(100000, "ACGT"[i % 4]));
    file += ">r\n" + texts.back() + "\n";
  }
  const auto path = write("a.fa", file);
  const auto all = read_all(path, CorpusFormat::Fasta);
  EXPECT_EQ(all.texts, texts);
  EXPECT_EQ(all.pieces[1], 3u);
  ASSERT_EQ(all.bad.size(), 1u);
  EXPECT_EQ(all.bad[0].number, 1u);
  expect_resumable(path, CorpusFormat::Fasta, all, 3);
}

TEST_F(DocumentReaderTest, ParquetIsReadOrRefusedWithAWord) {
  const auto path = write("a.parquet", "PAR1 but not really");
  const auto message = message_of([&] { open_document_reader(path, CorpusFormat::Parquet, "text"); });
  EXPECT_NE(message.find(parquet_available() ? "cannot read this Parquet file" : "Apache Arrow"), std::string::npos)
      << message;
}

TEST(CutDocument, PrefersSafePlaces) {
  const auto filled = [](std::size_t at, std::string_view with) {
    std::string text(kPieceBytes + 10, 'x');
    return text.replace(at, with.size(), with);
  };
  EXPECT_EQ(cut_document(filled(kPieceBytes - 100, "\nb")), kPieceBytes - 99);
  EXPECT_EQ(cut_document(filled(kPieceBytes - 100, "\n b")), kPieceBytes - 99);  // at the space
  EXPECT_EQ(cut_document(filled(kPieceBytes - 100,
                                "\n\xC2\xA0"
                                "b")),
            kPieceBytes);  // no-break space: not a place to cut
  EXPECT_EQ(cut_document(filled(kPieceBytes - 100, "\n\xE4\xB8\xAD")), kPieceBytes - 99);  // a Chinese character
  EXPECT_EQ(cut_document(filled(10, "\nb")), kPieceBytes);                                 // too early
  EXPECT_EQ(cut_document(filled(kPieceBytes - 2, "\xF0\x9F\x98\x80")), kPieceBytes - 2);   // never inside a character
  EXPECT_EQ(cut_document(std::string(kPieceBytes + 10, '\x80')), kPieceBytes);             // not UTF-8 at all
}

}  // namespace
}  // namespace essh
