#include "essh/base/file.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "essh/base/error.h"

namespace essh {
namespace {
namespace fs = std::filesystem;

struct FileTest : ::testing::Test {
  fs::path folder;
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "essh-file-XXXXXX").string();
    folder = ::mkdtemp(pattern.data());
  }
  void TearDown() override {
    testing::fail_io_call(0);
    fs::remove_all(folder);
  }
};

TEST_F(FileTest, EveryFailingCallLeavesTheOldFileWhole) {
  const auto path = folder / "state";
  write_durably(path, "old");
  testing::fail_io_call(0);
  write_durably(path, "old");
  const auto calls = testing::fail_io_call(0);
  ASSERT_GE(calls, 4u);  // write, fsync, rename, fsync of the folder
  for (std::uint64_t k = 1; k <= calls; ++k) {
    testing::fail_io_call(k);
    EXPECT_THROW(write_durably(path, "new"), Error);
    testing::fail_io_call(0);
    const auto text = read_text(path, 100);
    EXPECT_TRUE(text == "old" || (k == calls && text == "new")) << text;
    EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator{}), 1)
        << "a temporary was left behind";
    write_durably(path, "old");
  }
}

TEST_F(FileTest, AbandonedFileLeavesNothing) {
  { DurableFile(folder / "x").write("half"); }
  EXPECT_TRUE(fs::is_empty(folder));
}

TEST_F(FileTest, AppendFileContinuesFromTheKeptBytes) {
  const auto bytes = [](std::string_view text) { return std::as_bytes(std::span(text)); };
  {
    AppendFile file(folder / "x.part", 0);
    file.append(bytes("0123456789"));
  }
  AppendFile file(folder / "x.part", 4);
  EXPECT_EQ(file.size(), 4u);
  file.append(bytes("abc"));
  file.overwrite(0, bytes("__"));
  file.publish(folder / "x");
  EXPECT_EQ(read_text(folder / "x", 100), "__23abc");
  EXPECT_FALSE(fs::exists(folder / "x.part"));
  write_durably(folder / "short", "abc");
  EXPECT_THROW(AppendFile(folder / "short", 4), Error);
}

TEST_F(FileTest, ErrorsNameTheFile) {
  try {
    read_text(folder / "none", 10);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find((folder / "none").string()), std::string::npos);
  }
  write_durably(folder / "long", "0123456789");
  EXPECT_THROW(read_text(folder / "long", 9), Error);
  EXPECT_THROW(InputFile{folder}, Error);
  std::byte buffer[4];
  EXPECT_THROW(InputFile(folder / "long").read(8, buffer), Error);
}

TEST_F(FileTest, LockIsExclusive) {
  FileLock held(folder / "lock");
  EXPECT_THROW(FileLock(folder / "lock"), Error);
}

}  // namespace
}  // namespace essh
