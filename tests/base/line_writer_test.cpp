#include "essh/base/line_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "essh/base/file.h"

namespace essh {
namespace {
namespace fs = std::filesystem;

struct LineWriterTest : ::testing::Test {
  fs::path folder;
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "essh-lines-XXXXXX").string();
    folder = ::mkdtemp(pattern.data());
  }
  void TearDown() override { fs::remove_all(folder); }
};

TEST_F(LineWriterTest, AppendsInOrderAndFlushes) {
  write_durably(folder / "lines", "first\n");
  std::string expected = "first\n";
  {
    LineWriter lines(folder / "lines");
    for (int i = 0; i < 1000; ++i) {
      lines.write(std::to_string(i));
      expected += std::to_string(i) + "\n";
    }
    lines.flush();
    EXPECT_EQ(read_text(folder / "lines", 1u << 20), expected);
    lines.write("last");
  }
  EXPECT_EQ(read_text(folder / "lines", 1u << 20), expected + "last\n");
}

// Fault T9: a pipe without a reader simulates a disk that does not respond.
TEST_F(LineWriterTest, NeverWaitsForWhatTakesTheLines) {
  const auto path = folder / "pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const int reader = ::open(path.c_str(), O_RDWR | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  const std::string line(1000, 'x');
  constexpr std::size_t kLines = 1000;
  std::size_t taken = 0;
  {
    LineWriter lines(path);
    for (std::size_t i = 0; i < kLines; ++i) lines.write(line);
    std::vector<char> buffer(1 << 16);
    while (taken < kLines * (line.size() + 1)) {
      const auto got = ::read(reader, buffer.data(), buffer.size());
      if (got > 0) taken += static_cast<std::size_t>(got);
    }
  }
  EXPECT_EQ(taken, kLines * (line.size() + 1));
  ::close(reader);
}

TEST_F(LineWriterTest, AFileThatCannotBeOpenedIsNamed) {
  EXPECT_THROW(LineWriter(folder / "none" / "lines"), std::exception);
}

}  // namespace
}  // namespace essh
