#include "essh/data/prepare.h"

#include <algorithm>
#include <map>
#include <set>

#include "essh/base/json.h"
#include "essh/data/dataset.h"
#include "tests/data/corpus_fixture.h"
#include "tests/sanitized.h"

namespace essh {
namespace {
namespace fs = std::filesystem;

struct PrepareTest : CorpusTest {
  PrepareOptions options(const std::string& name, std::vector<std::string> inputs) const {
    PrepareOptions chosen;
    chosen.inputs = std::move(inputs);
    chosen.folder = folder / name;
    chosen.valid_fraction = 0.25;
    chosen.shard_tokens = 10000;
    chosen.checkpoint_bytes = 1;
    return chosen;
  }

  std::string write_jsonl(const std::string& name, const std::vector<std::string>& documents) const {
    std::string file;
    for (const auto& document : documents) file += to_text(Json{{"text", document}}) + "\n";
    return write(name, file);
  }
};

std::map<std::string, std::string> files_in(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    files[entry.path().filename().string()] = read_text(entry.path(), 1u << 30);
  }
  return files;
}

std::vector<std::string> documents_of(const TokenStream& stream) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(stream.tokens()));
  stream.read(0, tokens);
  std::vector<std::string> documents(1);
  for (const auto token : tokens) {
    if (token == 256)
      documents.emplace_back();
    else
      documents.back() += static_cast<char>(token);
  }
  EXPECT_TRUE(documents.back().empty()) << "the last document is not followed by the end of text";
  documents.pop_back();
  return documents;
}

TEST_F(PrepareTest, EveryDocumentGoesToOneSplitInOrder) {
  const auto texts = random_documents(400, 1, 600);
  const auto chosen = options("data", {write_jsonl("a.jsonl", texts)});
  const auto report = prepare(chosen, byte_encoder());
  const Dataset dataset(chosen.folder, Verify::Full);
  const auto train = documents_of(dataset.train());
  const auto valid = documents_of(dataset.valid());
  std::vector<std::string> merged;
  for (std::size_t i = 0, t = 0, v = 0; i < texts.size(); ++i) {
    if (t < train.size() && train[t] == texts[i])
      merged.push_back(train[t++]);
    else if (v < valid.size())
      merged.push_back(valid[v++]);
  }
  EXPECT_EQ(merged, texts);
  EXPECT_GT(valid.size(), 60u);
  EXPECT_LT(valid.size(), 140u);
  const auto& manifest = report.manifest;
  EXPECT_EQ(manifest.train.documents, static_cast<std::int64_t>(train.size()));
  EXPECT_EQ(manifest.train.tokens, manifest.train.bytes + manifest.train.documents);
  EXPECT_GT(manifest.train.shards.size(), 5u);
  EXPECT_EQ(manifest.train.shards[0].tokens, 10000);
  EXPECT_DOUBLE_EQ(dataset.valid_bytes_per_token(),
                   static_cast<double>(manifest.valid.bytes) / static_cast<double>(manifest.valid.tokens));
  EXPECT_FALSE(fs::exists(chosen.folder / "prepare.state.json"));
}

TEST_F(PrepareTest, ThreadsLeaveNoTrace) {
  const std::vector<std::string> inputs = {write_jsonl("a.jsonl", random_documents(3000, 1, 2000)),
                                           write("b.txt", random_documents(1, 3 * kPieceBytes, 3 * kPieceBytes)[0])};
  auto one = options("one", inputs);
  one.shard_tokens = 1'000'000;
  auto many = one;
  many.folder = folder / "many";
  many.threads = 5;
  prepare(one, byte_encoder());
  prepare(many, byte_encoder());
  EXPECT_EQ(files_in(one.folder), files_in(many.folder));
}

// A process that fails at its k-th write, sync or rename, for every k, and is then restarted produces the same bytes.
TEST_F(PrepareTest, AnyFailingCallThenRestartGivesTheSameBytes) {
  const std::vector<std::string> inputs = {write_jsonl("a.jsonl", random_documents(2200, 1, 1000)),
                                           write_jsonl("b.jsonl", random_documents(2200, 1, 1000, 2)),
                                           write("c.txt", "the end\n")};
  auto chosen = options("whole", inputs);
  chosen.shard_tokens = 700'000;
  testing::fail_io_call(0);
  prepare(chosen, byte_encoder());
  const auto calls = testing::fail_io_call(0);
  const auto expected = files_in(chosen.folder);
  ASSERT_GT(calls, 50u);
  int resumed = 0;
  for (std::uint64_t k = 1; k <= calls; ++k) {
    chosen.folder = folder / "again";
    fs::remove_all(chosen.folder);
    testing::fail_io_call(k);
    EXPECT_THROW(prepare(chosen, byte_encoder()), Error);
    testing::fail_io_call(0);
    resumed += prepare(chosen, byte_encoder()).resumed;
    ASSERT_EQ(files_in(chosen.folder), expected) << "after a failure of call " << k;
  }
  EXPECT_GT(resumed, static_cast<int>(calls) / 2);
}

TEST_F(PrepareTest, RunningAgainIsFree) {
  const auto chosen = options("data", {write_jsonl("a.jsonl", random_documents(10, 1, 100))});
  EXPECT_FALSE(prepare(chosen, byte_encoder()).already);
  write("data/prepare.state.json.tmp-77", "left by a killed run");
  EXPECT_TRUE(prepare(chosen, byte_encoder()).already);
  EXPECT_FALSE(fs::exists(chosen.folder / "prepare.state.json.tmp-77"));
  auto other = chosen;
  other.field = "body";
  EXPECT_NE(message_of([&] { prepare(other, byte_encoder()); }).find("the field was \"text\""), std::string::npos);
  fs::remove(chosen.folder / "train-00000.bin");
  EXPECT_NE(message_of([&] { prepare(chosen, byte_encoder()); }).find("train-00000.bin"), std::string::npos);
}

TEST_F(PrepareTest, ASourceThatChangedBetweenRestartsIsNamed) {
  const auto path = write_jsonl("a.jsonl", random_documents(2200, 1, 1000));
  auto chosen = options("data", {path});
  testing::fail_io_call(20);
  EXPECT_THROW(prepare(chosen, byte_encoder()), Error);
  testing::fail_io_call(0);
  write_jsonl("a.jsonl", random_documents(2200, 1, 1001));
  EXPECT_NE(message_of([&] { prepare(chosen, byte_encoder()); }).find("the source " + path + " changed"),
            std::string::npos);
  chosen.shard_tokens = 77;
  EXPECT_NE(message_of([&] { prepare(chosen, byte_encoder()); }).find("shard_tokens was 10000"), std::string::npos);
}

TEST_F(PrepareTest, PartsTogetherHoldEachDocumentOnce) {
  const auto texts = random_documents(300, 20, 400);
  const std::vector<std::string> few = {write_jsonl("a.jsonl", texts)};
  std::vector<std::string> many;
  for (std::size_t i = 0; i < 30; ++i) {
    many.push_back(
        write_jsonl(fmt::format("many/{:02}.jsonl", i), {texts.begin() + static_cast<std::ptrdiff_t>(10 * i),
                                                         texts.begin() + static_cast<std::ptrdiff_t>(10 * i + 10)}));
  }
  for (const auto& inputs : {few, many}) {
    auto chosen = options("data", inputs);
    chosen.parts = 3;
    std::multiset<std::string> found;
    for (const int part : {2, 1, 3}) {
      EXPECT_THROW(Dataset{chosen.folder}, Error) << "an incomplete set was accepted";
      chosen.part = part;
      const auto report = prepare(chosen, byte_encoder());
      EXPECT_GT(report.manifest.train.documents + report.manifest.valid.documents, 60);
    }
    const Dataset dataset(chosen.folder, Verify::Full);
    for (const auto& text : documents_of(dataset.train())) found.insert(text);
    for (const auto& text : documents_of(dataset.valid())) found.insert(text);
    EXPECT_EQ(found, std::multiset<std::string>(texts.begin(), texts.end()));
    fs::remove_all(chosen.folder);
  }
}

TEST_F(PrepareTest, BadLinesAreCountedAndNamed) {
  const auto path = write("a.jsonl", "{\"text\":\"good\"}\n{\"text\":1}\nbad\n{\"text\":\"also good\"}\n");
  auto chosen = options("data", {path});
  const auto report = prepare(chosen, byte_encoder());
  EXPECT_EQ(report.manifest.bad_lines, 2);
  EXPECT_EQ(report.manifest.first_bad_lines, (std::vector<std::string>{path + ":2: the field \"text\" is not a string",
                                                                       path + ":3: not a JSON object"}));
  EXPECT_EQ(report.manifest.train.documents + report.manifest.valid.documents, 2);
  chosen.folder = folder / "strict";
  chosen.strict = true;
  EXPECT_EQ(message_of([&] { prepare(chosen, byte_encoder()); }), path + ":2: the field \"text\" is not a string");
}

TEST_F(PrepareTest, OneLongDocumentFeedsBothSplits) {
  std::string text;
  for (int line = 0; text.size() < (5u << 19); ++line) text += fmt::format("line {} of a long document\n", line);
  for (const std::size_t size : {std::size_t{20000}, text.size()}) {
    const auto name = fmt::format("{}.txt", size);
    auto chosen = options("of-" + name, {write(name, text.substr(0, size))});
    chosen.valid_fraction = 0.1;
    const auto& manifest = prepare(chosen, byte_encoder()).manifest;
    const Dataset dataset(chosen.folder, Verify::Full);
    const auto train = documents_of(dataset.train()), valid = documents_of(dataset.valid());
    ASSERT_EQ(train.size(), valid.size());
    EXPECT_EQ(train.size(), size > kPieceBytes ? 3u : 1u);
    std::string joined;
    for (std::size_t i = 0; i < train.size(); ++i) {
      joined += train[i] + valid[i];
      EXPECT_EQ(train[i].back(), '\n');
    }
    EXPECT_EQ(joined, text.substr(0, size));
    EXPECT_EQ(manifest.train.bytes + manifest.valid.bytes, static_cast<std::int64_t>(size));
    EXPECT_NEAR(static_cast<double>(manifest.valid.bytes), 0.1 * static_cast<double>(size), 100.0 * 3);
  }
  // Below the least share, and without a share, a document is not cut.
  auto chosen = options("short", {write("short.txt", text.substr(0, 20000))});
  chosen.valid_fraction = 0.05;
  const auto report = prepare(chosen, byte_encoder());
  EXPECT_EQ(report.manifest.train.documents + report.manifest.valid.documents, 1);
}

TEST_F(PrepareTest, NoTextIsAnErrorThatLeavesNoJournal) {
  auto chosen = options("data", {write("a.txt", ""), write("b.jsonl", "{\"other\": 1}\n")});
  const auto message = message_of([&] { prepare(chosen, byte_encoder()); });
  EXPECT_NE(message.find("no text in 2 source(s), 1 bad lines"), std::string::npos) << message;
  chosen.inputs = {write("c.txt", "text")};
  const auto& manifest = prepare(chosen, byte_encoder()).manifest;
  EXPECT_EQ(manifest.train.documents + manifest.valid.documents, 1) << "the folder can be used again";
}

TEST_F(PrepareTest, FoldersPatternsAndBinaryFiles) {
  write("in/b.txt", "b");
  write("in/a/z.txt", "z");
  write("in/.hidden", "h");
  write("in/image", std::string("\x89PNG\0\0", 6));
  write("in/data/old.txt", "old");
  auto chosen = options("in/data", {(folder / "in").string(), (folder / "in/*.txt").string()});
  chosen.valid_fraction = 0;
  prepare(chosen, byte_encoder());
  EXPECT_EQ(documents_of(Dataset(chosen.folder).train()), (std::vector<std::string>{"z", "b"}));
  chosen = options("in", {(folder / "in").string()});
  EXPECT_NE(message_of([&] { prepare(chosen, byte_encoder()); }).find("the folder to write to"), std::string::npos);
  chosen = options("x", {(folder / "in/image").string()});
  EXPECT_NE(message_of([&] { prepare(chosen, byte_encoder()); }).find("binary"), std::string::npos);
  chosen = options("x", {(folder / "no*").string()});
  EXPECT_NE(message_of([&] { prepare(chosen, byte_encoder()); }).find("no file matches"), std::string::npos);
}

TEST_F(PrepareTest, RecordsHeldOutAreTheValidationSplit) {
  const auto bases = random_documents(1, 5 * kPieceBytes / 2, 5 * kPieceBytes / 2)[0];
  const auto path = write("genome.fa", ">chr2 first\nACGT\n>chr21 second\n" + bases + "\n>chr21_alt\nGG\n>X\nTTTT\n");
  auto chosen = options("data", {path});
  chosen.holdout = {"chr21", "X"};
  chosen.valid_fraction = 0;
  prepare(chosen, byte_encoder());
  const Dataset dataset(chosen.folder, Verify::Full);
  std::string record = bases;
  std::erase(record, '\n');
  std::erase(record, '\r');
  EXPECT_EQ(documents_of(dataset.train()), (std::vector<std::string>{"ACGT", "GG"}));
  EXPECT_EQ(documents_of(dataset.valid()), (std::vector<std::string>{record, "TTTT"}));

  // With --valid-fraction too, the record stays whole.
  auto both = options("both", {path});
  both.holdout = {"chr21"};
  both.valid_fraction = 0.5;
  prepare(both, byte_encoder());
  const auto valid = documents_of(Dataset(both.folder).valid());
  EXPECT_EQ(std::count(valid.begin(), valid.end(), record), 1);

  auto other = chosen;
  other.holdout = {"chr2"};
  EXPECT_NE(message_of([&] { prepare(other, byte_encoder()); }).find("the records held out were chr21, X"),
            std::string::npos);
}

TEST_F(PrepareTest, ARecordToHoldOutMustExist) {
  auto chosen = options("data", {write("genome.fa", ">chr1\nACGT\n>chr2\nGG\n")});
  chosen.holdout = {"chr1", "chr21"};
  EXPECT_EQ(message_of([&] { prepare(chosen, byte_encoder()); }),
            "holdout \"chr21\": no FASTA record has that name; the first are chr1, chr2");
  chosen.holdout = {"chr2"};
  EXPECT_EQ(prepare(chosen, byte_encoder()).manifest.valid.documents, 1) << "the folder can be used again";
  auto text = options("text", {write("a.txt", "chr21\n")});
  text.holdout = {"chr21"};
  EXPECT_EQ(message_of([&] { prepare(text, byte_encoder()); }),
            "holdout \"chr21\": no FASTA record has that name; the sources have no FASTA records");
}

// Killed in the middle of a held-out record, the next process still knows which record it is reading.
TEST_F(PrepareTest, HoldingOutSurvivesARestart) {
  std::string genome;
  for (int i = 0; i < 12; ++i)
    genome += fmt::format(">chr{}\n{}\n", i, std::string(300'000 + static_cast<std::size_t>(i), "ACGT"[i % 4]));
  auto chosen = options("whole", {write("genome.fa", genome)});
  chosen.holdout = {"chr1", "chr7"};
  chosen.valid_fraction = 0;
  chosen.shard_tokens = 700'000;
  testing::fail_io_call(0);
  prepare(chosen, byte_encoder());
  const auto calls = testing::fail_io_call(0);
  const auto expected = files_in(chosen.folder);
  int resumed = 0;
  // Every call is AnyFailingCallThenRestartGivesTheSameBytes's subject.
  for (std::uint64_t k = 1; k <= calls; k += kSanitized ? 3 : 1) {
    chosen.folder = folder / "again";
    fs::remove_all(chosen.folder);
    testing::fail_io_call(k);
    EXPECT_THROW(prepare(chosen, byte_encoder()), Error);
    testing::fail_io_call(0);
    resumed += prepare(chosen, byte_encoder()).resumed;
    ASSERT_EQ(files_in(chosen.folder), expected) << "after a failure of call " << k;
  }
  EXPECT_GT(resumed, 0);
}

TEST_F(PrepareTest, ForeignShardsAreNotOverwritten) {
  write("data/train-00000.bin", "mine");
  const auto chosen = options("data", {write("a.txt", "text")});
  EXPECT_NE(message_of([&] { prepare(chosen, byte_encoder()); }).find("in the way"), std::string::npos);
  EXPECT_EQ(read_text(folder / "data/train-00000.bin", 100), "mine");
}

}  // namespace
}  // namespace essh
