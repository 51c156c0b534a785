#include "essh/data/loader.h"

#include <memory>
#include <set>

#include "essh/data/xxhash64.h"
#include "tests/data/corpus_fixture.h"

namespace essh {
namespace {
namespace fs = std::filesystem;

struct LoaderTest : CorpusTest {
  fs::path data;

  void SetUp() override {
    CorpusTest::SetUp();
    data = folder / "data";
    std::string file;
    for (const auto& text : random_documents(200, 10, 300)) file += text + "\n<|endoftext|>\n";
    PrepareOptions options;
    options.inputs = {write("a.txt", file)};
    options.folder = data;
    options.valid_fraction = 0.1;
    options.shard_tokens = 3001;
    prepare(options, byte_encoder());
  }
};

std::uint64_t hash_of(std::span<const std::int32_t> row) {
  return xxhash64(std::as_bytes(row));
}

// Inputs of a row and its last target.
std::vector<std::int32_t> window_of(const Batch& batch, std::int64_t row) {
  const auto first = static_cast<std::size_t>(row * batch.length), length = static_cast<std::size_t>(batch.length);
  const auto inputs = std::span(batch.inputs).subspan(first, length);
  std::vector<std::int32_t> window(inputs.begin(), inputs.end());
  window.push_back(batch.targets[first + length - 1]);
  EXPECT_TRUE(std::equal(window.begin() + 1, window.end(), batch.targets.begin() + static_cast<std::ptrdiff_t>(first)));
  return window;
}

// Takes `samples` samples from `position` on, as a group of ranks does; records their hashes by position in the global
// stream.
void train(const Sequences& sequences, LoaderOptions options, std::int64_t& position, std::int64_t samples,
           std::vector<std::uint64_t>& seen) {
  std::vector<std::unique_ptr<Loader>> group;
  for (options.rank = 0; options.rank < options.ranks; ++options.rank) {
    group.push_back(std::make_unique<Loader>(sequences, options, position));
  }
  const auto end = position + samples;
  seen.resize(static_cast<std::size_t>(end));
  while (group[0]->position() < end) {
    for (auto& loader : group) {
      const auto batch = loader->next();
      for (std::int64_t row = 0; row < batch.rows; ++row) {
        auto& place = seen.at(static_cast<std::size_t>(batch.first_sample + row));
        EXPECT_EQ(place, 0u) << "a sample was seen twice";
        place = hash_of(window_of(batch, row));
      }
    }
  }
  for (const auto& loader : group) EXPECT_EQ(loader->position(), end);
  position = end;
}

TEST_F(LoaderTest, AnyRanksRowsAndRestartsSeeOneStream) {
  const Dataset dataset(data);
  const TextSequences sequences(dataset.train(), 64, 5);
  std::vector<std::uint64_t> expected;
  std::int64_t position = 0;
  const std::int64_t samples = 1200;
  ASSERT_GT(samples, 2 * sequences.windows()) << "the test should cross epochs";
  train(sequences, {.rows = 1}, position, samples, expected);

  const auto with = [](std::int64_t rows, int ranks) { return LoaderOptions{.rows = rows, .ranks = ranks}; };
  std::vector<std::uint64_t> two;
  position = 0;
  train(sequences, with(3, 2), position, samples, two);
  EXPECT_EQ(two, expected);

  std::vector<std::uint64_t> changing;
  position = 0;
  for (const auto& [rows, ranks] : {std::pair{4, 1}, {2, 2}, {8, 1}, {1, 4}, {4, 3}}) {
    train(sequences, with(rows, ranks), position, 240, changing);
  }
  EXPECT_EQ(changing, expected);

  std::vector<std::uint64_t> other_seed;
  position = 0;
  train(TextSequences(dataset.train(), 64, 6), {.rows = 1}, position, samples, other_seed);
  EXPECT_NE(other_seed, expected);
}

TEST_F(LoaderTest, AnEpochCoversTheStreamOnce) {
  const Dataset dataset(data);
  const auto& stream = dataset.train();
  const std::int64_t context = 50;
  std::multiset<std::uint64_t> windows;
  std::vector<std::int32_t> all(static_cast<std::size_t>(stream.tokens()));
  stream.read(0, all);
  for (std::int64_t i = 0; i < stream.windows(context); ++i) {
    windows.insert(hash_of(std::span(all).subspan(static_cast<std::size_t>(i * context), context + 1)));
  }
  const TextSequences sequences(stream, context, 0);
  Loader loader(sequences, {});
  std::multiset<std::uint64_t> seen;
  for (std::int64_t i = 0; i < sequences.windows(); ++i) seen.insert(hash_of(window_of(loader.next(), 0)));
  EXPECT_EQ(seen, windows);
}

TEST_F(LoaderTest, SeekGoesAnywhere) {
  const Dataset dataset(data);
  const TextSequences sequences(dataset.train(), 32, 0);
  Loader loader(sequences, {.rows = 2});
  std::vector<std::vector<std::int32_t>> batches;
  for (int i = 0; i < 20; ++i) batches.push_back(loader.next().inputs);
  for (const std::int64_t to : {30, 0, 12}) {
    loader.seek(to);
    EXPECT_EQ(loader.position(), to);
    EXPECT_EQ(loader.next().inputs, batches[static_cast<std::size_t>(to / 2)]);
  }
}

TEST_F(LoaderTest, TooLittleTextIsSaid) {
  const Dataset dataset(data);
  EXPECT_NE(message_of([&] { TextSequences(dataset.train(), 1'000'000, 0); }).find("too few"), std::string::npos);
  EXPECT_EQ(dataset.valid().windows(1'000'000), 0);
}

// Fault T7: damaged data.
TEST_F(LoaderTest, DamageNamesTheShard) {
  const auto path = data / "train-00001.bin";
  const auto good = read_text(path, 1u << 20);
  const auto expect_named = [&](const fs::path& shard, std::string_view why) {
    const auto message = message_of([&] { Dataset{data}; });
    EXPECT_NE(message.find(shard.string()), std::string::npos) << message;
    EXPECT_NE(message.find(why), std::string::npos) << message;
  };
  write_durably(path, good.substr(0, good.size() - 1));
  expect_named(path, "bytes");
  for (std::size_t at = 0; at < kShardHeaderBytes; ++at) {
    auto bad = good;
    bad[at] ^= 1;
    write_durably(path, bad);
    EXPECT_NE(message_of([&] { Dataset{data}; }).find(path.string()), std::string::npos) << "byte " << at;
  }
  auto bad = good;
  bad[kShardHeaderBytes + 5] ^= 1;
  write_durably(path, bad);
  expect_named(path, "changed or damaged");
  fs::remove(path);
  expect_named(path, "cannot open");
  fs::copy(data / "train-00002.bin", path);
  expect_named(path, "changed or swapped");
  write_durably(path, good);
  const auto fingerprint = Dataset(data).fingerprint();
  EXPECT_EQ(fingerprint.size(), 64u);
}

// Sampling reads 64 pages; the full check finds one changed bit anywhere.
TEST_F(LoaderTest, FullVerificationFindsOneBit) {
  PrepareOptions options;
  options.inputs = {write("big.txt", std::string(600000, 'a'))};
  options.folder = folder / "big";
  options.valid_fraction = 0;
  prepare(options, byte_encoder());
  const auto path = options.folder / "train-00000.bin";
  auto bytes = read_text(path, 1u << 30);
  const auto pages = sample_pages(bytes.size() - kShardHeaderBytes);
  ASSERT_GT(pages.size(), 2u);
  bytes[kShardHeaderBytes + pages[0].size + 1000] ^= 4;
  write_durably(path, bytes);
  EXPECT_NO_THROW(Dataset{options.folder});
  EXPECT_NE(message_of([&] { Dataset(options.folder, Verify::Full); }).find(path.string()), std::string::npos);
}

}  // namespace
}  // namespace essh
