#include "essh/store/tuned_file.h"

#include <gtest/gtest.h>

#include "essh/base/file.h"
#include "tests/store/temp_folder.h"

namespace essh {
namespace {

struct TunedFile : TempFolderTest {};

TEST_F(TunedFile, KeepsChoices) {
  const auto file = folder / "cache" / "tuned.json";
  EXPECT_TRUE(read_choices(file).empty());
  const TunedChoices choices{{"matmul bb", "00ff"}, {"window step \"x\"", "4"}};
  write_choices(file, choices);
  EXPECT_EQ(read_choices(file), choices);
}

TEST_F(TunedFile, ADamagedFileIsIgnoredWithAWord) {
  const auto file = folder / "tuned.json";
  for (const char* text : {"", "{", "{\"a\": \"1\", \"b\": 2}", "[\"a\"]", "7"}) {
    write_durably(file, text);
    ::testing::internal::CaptureStderr();
    EXPECT_TRUE(read_choices(file).empty()) << text;
    const auto said = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find(file.string() + ": not usable, tuning again"), std::string::npos) << text << ": " << said;
  }
}

TEST_F(TunedFile, AFileThatCannotBeWrittenIsAWarning) {
  write_durably(folder / "cache", "a file where the folder should be");
  ::testing::internal::CaptureStderr();
  write_choices(folder / "cache" / "tuned.json", {{"a", "1"}});
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("could not be kept"), std::string::npos);
}

}  // namespace
}  // namespace essh
