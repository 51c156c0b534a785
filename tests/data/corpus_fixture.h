#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "essh/base/error.h"
#include "essh/base/file.h"
#include "essh/base/log.h"
#include "essh/base/rng.h"
#include "essh/data/prepare.h"

namespace essh {

// A separate folder for each test.
struct CorpusTest : ::testing::Test {
  std::filesystem::path folder;

  void SetUp() override {
    log::set_level(log::Level::Quiet);
    // In memory if possible: these tests sync files thousands of times.
    const bool memory = ::access("/dev/shm", W_OK) == 0;
    std::string pattern =
        ((memory ? std::filesystem::path("/dev/shm") : std::filesystem::temp_directory_path()) / "essh-data-XXXXXX")
            .string();
    folder = ::mkdtemp(pattern.data());
  }
  void TearDown() override { std::filesystem::remove_all(folder); }

  std::string write(const std::string& name, std::string_view text) const {
    make_folder((folder / name).parent_path());
    write_durably(folder / name, text);
    return (folder / name).string();
  }
};

// id = byte, end of text = 256.
inline TextEncoder byte_encoder() {
  return {.format = {.tokenizer_hash = "byte-double", .vocab_size = 257},
          .eos_id = 256,
          .encode = [](std::string_view text, std::vector<std::int32_t>& out) {
            // Through pointers: tests are compiled without optimisation with a sanitizer.
            const auto before = out.size();
            out.resize(before + text.size());
            const char* from = text.data();
            std::int32_t* to = out.data() + before;
            for (std::size_t i = 0, count = text.size(); i < count; ++i) to[i] = static_cast<unsigned char>(from[i]);
          }};
}

// Documents of `least` to `most` letters and line breaks.
inline std::vector<std::string> random_documents(int count, std::uint64_t least, std::uint64_t most,
                                                 std::uint64_t seed = 1) {
  Rng rng(seed);
  std::vector<std::string> documents;
  for (int i = 0; i < count; ++i) {
    std::string text;
    for (auto left = least + rng.below(most - least + 1); left > 0; --left) {
      text += "etaoin shrdlu\n\"\\"[rng.below(16)];
    }
    documents.push_back(text);
  }
  return documents;
}

template <class Body>
std::string message_of(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace essh
