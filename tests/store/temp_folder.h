#pragma once
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "essh/base/error.h"
#include "essh/base/file.h"

namespace essh {

// A separate folder for every test; clears injected faults.
struct TempFolderTest : ::testing::Test {
  std::filesystem::path folder;

  void SetUp() override {
    // In memory if possible: these tests sync thousands of times.
    const std::filesystem::path roots[] = {"/dev/shm", std::filesystem::temp_directory_path()};
    for (const auto& root : roots) {
      std::string pattern = (root / "essh-store-XXXXXX").string();
      if (::mkdtemp(pattern.data()) == nullptr) continue;
      folder = pattern;
      return;
    }
    FAIL() << "no folder for temporary files";
  }
  void TearDown() override {
    testing::fail_io_call(0);
    testing::forbid_exchange(false);
    std::filesystem::remove_all(folder);
  }
};

// The message of the Error that `action` throws, or "no error".
template <class Action>
std::string message_of(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace essh
