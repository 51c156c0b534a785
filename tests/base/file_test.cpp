#include "essh/base/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "essh/base/error.h"
#include "essh/base/mapped_file.h"
#include "essh/base/signals.h"

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

// Fault T8: two writers of one folder.
TEST_F(FileTest, LockIsExclusiveAndNamesItsHolder) {
  FileLock held(folder / "lock");
  try {
    FileLock second(folder / "lock");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(fmt::format("pid {} on ", ::getpid())), std::string::npos) << error.what();
  }
}

TEST_F(FileTest, LinksAreFollowed) {
  write_durably(folder / "file", "old");
  fs::permissions(folder / "file", fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink("file", folder / "link");
  fs::create_symlink("link", folder / "link to link");
  write_durably(folder / "link to link", "new");
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(read_text(folder / "file", 10), "new");
  EXPECT_EQ(fs::status(folder / "file").permissions(), fs::perms::owner_read | fs::perms::owner_write);

  fs::create_symlink("later", folder / "dangling");
  write_durably(folder / "dangling", "first");
  EXPECT_TRUE(fs::is_symlink(folder / "dangling"));
  EXPECT_EQ(read_text(folder / "later", 10), "first");

  fs::create_symlink("loop", folder / "loop");
  EXPECT_THROW(write_durably(folder / "loop", "x"), Error);
  EXPECT_THROW(write_durably(folder, "x"), Error);
}

TEST_F(FileTest, WhatIsNoRegularFileIsWrittenThrough) {
  const auto pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0666), 0);
  std::string read;
  std::thread reader([&] {
    std::ifstream in(pipe);
    std::getline(in, read);
  });
  write_durably(pipe, "through");
  reader.join();
  EXPECT_EQ(read, "through");
  EXPECT_TRUE(fs::is_fifo(pipe));

  // Uses a device node of its own if it may create one, so that a fault cannot destroy the machine's.
  const auto full = folder / "full";
  const bool made = ::mknod(full.c_str(), S_IFCHR | 0666, makedev(1, 7)) == 0;
  try {
    write_durably(made ? full : fs::path("/dev/full"), "x");
    ADD_FAILURE() << "nothing failed";
  } catch (const Error& error) {
    // If device nodes cannot be opened, that is the error.
    EXPECT_EQ(error.kind(), ErrorKind::BadFile);
  }
  EXPECT_TRUE(fs::is_character_file(made ? full : fs::path("/dev/full")));
  EXPECT_NO_THROW(write_durably("/dev/null", "x"));
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST_F(FileTest, OwnDescriptorsAreWrittenWhereTheyStand) {
  const int file = ::open((folder / "out").c_str(), O_RDWR | O_CREAT, 0666);
  ASSERT_GE(file, 0);
  ASSERT_EQ(::write(file, "before ", 7), 7);
  write_durably(fmt::format("/dev/fd/{}", file), "after");
  ::close(file);
  EXPECT_EQ(read_text(folder / "out", 100), "before after");
}

TEST_F(FileTest, PipesAreNoInputFiles) {
  const auto pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0666), 0);
  EXPECT_THROW(InputFile{pipe}, Error);  // at once, although the pipe has no writer
  EXPECT_THROW(read_text(pipe, 100), Error);
  EXPECT_THROW(MappedFile{pipe}, Error);
  EXPECT_THROW(AppendFile(pipe, 0), Error);
}

TEST_F(FileTest, LeftoversOfDeadWritersGo) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  const auto left = folder / fmt::format("x.tmp-{}", child), other = folder / fmt::format("y.tmp-{}", child);
  for (const auto& path : {left, other}) std::ofstream(path) << "half";
  write_durably(folder / "x", "whole");
  EXPECT_FALSE(fs::exists(left));
  EXPECT_TRUE(fs::exists(other));
}

// Exit status of a child that runs `body`, which must not return.
template <class Body>
int status_of_child(const Body& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    body();
    ::_exit(77);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

TEST_F(FileTest, SignalsRemoveTemporaries) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const int status = status_of_child([&] {
      install_signal_handlers();
      DurableFile file(folder / "file");
      file.write("half");
      TemporaryPath unfinished(folder / "model");
      fs::create_directories(unfinished.path() / "sub");
      std::ofstream(unfinished.path() / "sub" / "weights") << "half";
      ::raise(signal);
    });
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal) << status;
    EXPECT_TRUE(fs::is_empty(folder));
  }
}

TEST_F(FileTest, AHandlerThatWasPutBackStillEndsTheProcess) {
  const int status = status_of_child([] {
    install_signal_handlers();
    const auto usual = ::signal(SIGTERM, SIG_IGN);
    ::signal(SIGTERM, usual);
    ::raise(SIGTERM);
  });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
}

TEST_F(FileTest, ALimitOnTheSizeOfFilesIsAnError) {
  const int status = status_of_child([&] {
    install_signal_handlers();
    const rlimit limit{1000, 1000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      write_durably(folder / "x", std::string(2000, 'x'));
    } catch (const Error& error) {
      ::_exit(std::string(error.what()).find("ulimit") != std::string::npos ? 1 : 2);
    }
  });
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status;
  EXPECT_TRUE(fs::is_empty(folder));
}

// Fault M8: a mapped file that shrinks.
TEST_F(FileTest, AMappedFileThatShrinksEndsWithItsName) {
  write_durably(folder / "shard", std::string(1 << 16, 'x'));
  const int output = ::open((folder / "words").c_str(), O_RDWR | O_CREAT, 0666);
  const int status = status_of_child([&] {
    ::dup2(output, STDERR_FILENO);
    const MappedFile other(folder / "words"), file(folder / "shard");
    { const MappedFile gone(folder / "shard"); }
    fs::resize_file(folder / "shard", 10);
    ::_exit(static_cast<int>(static_cast<volatile const std::byte&>(file.bytes().back())));
  });
  ::close(output);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == exit_code(ErrorKind::BadFile)) << status;
  EXPECT_NE(read_text(folder / "words", 1000).find((folder / "shard").string() + ": "), std::string::npos);
}

}  // namespace
}  // namespace essh
