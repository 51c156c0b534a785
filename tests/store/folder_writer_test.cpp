#include "essh/store/folder_writer.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>

#include "essh/base/rng.h"
#include "essh/store/manifest.h"
#include "essh/store/tensor_files.h"
#include "tests/store/temp_folder.h"

namespace essh {
namespace {
namespace fs = std::filesystem;

// A folder like a model's: shards, an index, a text and a sub-folder, all of one version.
void write_version(const fs::path& target, int version, ExistingFolder existing = ExistingFolder::Replace) {
  FolderWriter writer(target, existing);
  TensorFilesWriter tensors(writer.folder(), {{"a", DType::F32, {50}}, {"b", DType::BF16, {50}}}, {}, 250);
  for (const auto& tensor : tensors.tensors()) {
    tensors.write_as<float>(tensor, std::vector<float>(50, static_cast<float>(version)));
  }
  tensors.commit();
  fs::create_directory(writer.folder() / "sub");
  write_durably(writer.folder() / "sub" / "version", std::to_string(version));
  writer.commit();
}

// The version of a complete and consistent folder; 0 if there is no folder.
int whole_version(const fs::path& target) {
  if (!fs::exists(target)) return 0;
  const auto problems = check_manifest(target);
  EXPECT_TRUE(problems.empty()) << problems.list().front();
  const int version = std::stoi(read_text(target / "sub" / "version", 10));
  const auto files = TensorFiles::open(target);
  EXPECT_EQ(files.files().size(), 2u);
  for (const auto& tensor : files.tensors()) {
    std::vector<float> values(50);
    files.read_as<float>(tensor, values);
    EXPECT_EQ(values, std::vector<float>(50, static_cast<float>(version)));
  }
  return version;
}

std::size_t entries(const fs::path& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator{}));
}

struct FolderWriterTest : TempFolderTest {
  fs::path target;
  void SetUp() override {
    TempFolderTest::SetUp();
    target = folder / "model";
  }
};

TEST_F(FolderWriterTest, AppearsOnCommitOnly) {
  {
    FolderWriter writer(target);
    write_durably(writer.folder() / "x", "1");
    EXPECT_FALSE(fs::exists(target));
  }
  EXPECT_EQ(entries(folder), 0u) << "an abandoned writer leaves nothing";
  write_version(target / "", 1);  // a trailing slash names the same folder
  EXPECT_EQ(whole_version(target), 1);
  EXPECT_EQ(entries(folder), 1u);
}

TEST_F(FolderWriterTest, ReplacesOnlyWhatItMay) {
  fs::create_directory(target);
  write_version(target, 1, ExistingFolder::Refuse);  // replacing an empty folder loses nothing
  EXPECT_NE(message_of([&] { write_version(target, 2, ExistingFolder::Refuse); }).find("exists already"),
            std::string::npos);
  EXPECT_EQ(whole_version(target), 1);
  write_version(target, 2);
  EXPECT_EQ(whole_version(target), 2);

  const auto precious = folder / "precious";
  fs::create_directory(precious);
  write_durably(precious / "thesis", "...");
  EXPECT_NE(message_of([&] { FolderWriter(precious, ExistingFolder::Replace); }).find("not written by essh"),
            std::string::npos);
  EXPECT_NE(message_of([&] { FolderWriter(precious / "thesis", ExistingFolder::Replace); }).find("not written by essh"),
            std::string::npos);
  EXPECT_NE(message_of([&] { FolderWriter("/dev/null", ExistingFolder::Replace); }).find("is no folder"),
            std::string::npos);
  EXPECT_EQ(read_text(precious / "thesis", 10), "...");
  EXPECT_EQ(entries(folder), 2u);
}

TEST_F(FolderWriterTest, ALinkedFolderIsReplacedWhereItIs) {
  write_version(target, 1);
  fs::create_directory_symlink(target, folder / "link");
  write_version(folder / "link", 2);
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(whole_version(target), 2);
}

TEST_F(FolderWriterTest, AFolderThatAppearsMeanwhileIsNotLost) {
  FolderWriter writer(target);
  write_durably(writer.folder() / "x", "1");
  fs::create_directory(target);
  write_durably(target / "theirs", "2");
  EXPECT_THROW(writer.commit(), Error);
  EXPECT_EQ(read_text(target / "theirs", 10), "2");
}

TEST_F(FolderWriterTest, EveryFailingCallLeavesAWholeFolderOrNone) {
  for (const bool can_exchange : {true, false}) {
    testing::forbid_exchange(!can_exchange);
    for (const int before : {0, 1}) {
      const auto prepare = [&] {
        testing::fail_io_call(0);
        fs::remove_all(folder);
        fs::create_directory(folder);
        if (before != 0) write_version(target, before);
        testing::fail_io_call(0);
      };
      prepare();
      write_version(target, 2);
      const auto calls = testing::fail_io_call(0);
      ASSERT_GT(calls, 20u);
      for (std::uint64_t k = 1; k <= calls; ++k) {
        prepare();
        testing::fail_io_call(k);
        const bool failed = message_of([&] { write_version(target, 2); }) != "no error";
        testing::fail_io_call(0);
        const int after = whole_version(target);
        // Only the last call, the sync of the parent folder, comes after the new folder is in place; if the exchange
        // fails, the writer falls back on renames.
        EXPECT_EQ(after, !failed || k == calls ? 2 : before) << "call " << k << " of " << calls;
        EXPECT_EQ(entries(folder), (after != 0) + (failed && k == calls && before != 0 ? 1u : 0u)) << "call " << k;
      }
    }
  }
}

TEST_F(FolderWriterTest, AKilledProcessLeavesAWholeFolder) {
  const auto start = std::chrono::steady_clock::now();
  write_version(target, 1);
  const std::chrono::duration<double, std::micro> one_write = std::chrono::steady_clock::now() - start;
  int written[2];  // one byte per version written by a child
  ASSERT_EQ(::pipe(written), 0);
  Rng rng(1);
  int highest = 1;
  for (int round = 0; round < 50; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      // Few enough versions that each is exact in bf16.
      for (int version = highest + 1; version <= highest + 4; ++version) {
        write_version(target, version);
        if (::write(written[1], "", 1) != 1) ::_exit(1);
      }
      ::pause();
    }
    // However slow the machine is, some children get to write.
    char byte;
    if (round % 10 == 0) {
      ASSERT_EQ(::read(written[0], &byte, 1), 1);
    }
    // A fork alone may take longer than a write.
    ::usleep(static_cast<useconds_t>((round % 2 == 0 ? 1.0 : 20000.0) + one_write.count() * 5.0 * rng.uniform()));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const int version = whole_version(target);
    EXPECT_GE(version, highest);
    highest = version;
  }
  ::close(written[0]);
  ::close(written[1]);
  EXPECT_GT(highest, 1) << "no child lived long enough to show anything";
}

TEST_F(FolderWriterTest, LeftoversOfEndedProcessesAreRemoved) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ASSERT_GT(child, 0);
  ::waitpid(child, nullptr, 0);
  const auto ended = folder / fmt::format("model.tmp-{}", child),
             alive = folder / fmt::format("model.tmp-{}", ::getpid());
  for (const auto& path : {ended, alive, folder / "model.tmp-", folder / "model.tmp-12x", folder / "model"})
    fs::create_directories(path / "inside");
  const auto file = folder / fmt::format("file.tmp-{}", child);
  std::ofstream(file) << "a file";
  remove_leftovers(folder, "model");
  EXPECT_FALSE(fs::exists(ended));
  EXPECT_TRUE(fs::exists(file)) << "of another target";
  remove_leftovers(folder);
  EXPECT_FALSE(fs::exists(file));
  for (const auto& path : {alive, folder / "model.tmp-", folder / "model.tmp-12x", folder / "model"})
    EXPECT_TRUE(fs::exists(path)) << path;
  remove_leftovers(folder / "nothing here");

  // A writer on another machine is visible only by its lock.
  fs::create_directories(ended);
  const int held = ::open(ended.c_str(), O_RDONLY | O_DIRECTORY);
  mark_in_use(held);
  remove_leftovers(folder);
  EXPECT_TRUE(fs::exists(ended));
  ::close(held);
  fs::remove_all(target);
  FolderWriter writer(target);
  EXPECT_FALSE(fs::exists(ended)) << "the next writer of the same folder cleans up";
}

TEST_F(FolderWriterTest, FilesOfOthersAreNotDeleted) {
  write_version(target, 1);
  for (const char* name : {"notes.txt", "sub/notes.txt", ".hidden"}) {
    std::ofstream(target / name) << "mine";
    EXPECT_NE(message_of([&] { write_version(target, 2); }).find(name), std::string::npos);
    EXPECT_EQ(read_text(target / name, 10), "mine");
    fs::remove(target / name);
  }
  fs::create_symlink(folder, target / "link");
  EXPECT_NE(message_of([&] { write_version(target, 2); }).find("\"link\""), std::string::npos);
  fs::remove(target / "link");
  EXPECT_EQ(whole_version(target), 1);
  write_version(target, 2);
  EXPECT_EQ(whole_version(target), 2);
}

TEST_F(FolderWriterTest, OverlapIsFoundThroughLinksAndDots) {
  fs::create_directories(folder / "a" / "b");
  fs::create_directories(folder / "ab");
  fs::create_directory_symlink(folder / "a", folder / "link");
  const auto overlap = [&](const fs::path& path) { return message_of([&] { refuse_overlap(folder / "a", path); }); };
  EXPECT_EQ(overlap(folder / "ab"), "no error");
  EXPECT_EQ(overlap(folder / "new"), "no error");
  EXPECT_NE(overlap(folder / "a").find(": is "), std::string::npos);
  EXPECT_NE(overlap(folder / "a" / "").find(": is "), std::string::npos);
  EXPECT_NE(overlap(folder / "ab" / ".." / "a").find(": is "), std::string::npos);
  EXPECT_NE(overlap(folder / "link").find(": is "), std::string::npos);
  EXPECT_NE(overlap(folder / "link" / "new").find("lies inside"), std::string::npos);
  EXPECT_NE(overlap(folder).find("contains"), std::string::npos);
}

}  // namespace
}  // namespace essh
