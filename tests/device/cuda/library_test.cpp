#include "essh/device/cuda/library.h"

#include <gtest/gtest.h>

#include "essh/base/error.h"

namespace essh::cuda {
namespace {

std::string message_of(const auto& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Device);
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Library, TakesTheFirstFileThatIsThere) {
  const Library math({"libessh_nowhere.so.7", "libm.so.6"}, "a test");
  double (*const cosine)(double) = math.find("cos");
  EXPECT_EQ(cosine(0), 1);
}

TEST(Library, SaysWhatIsMissingAndWhatFor) {
  const auto file = message_of([] { Library({"libessh_nowhere.so.7"}, "a CUDA device"); });
  EXPECT_NE(file.find("libessh_nowhere.so.7"), std::string::npos) << file;
  EXPECT_NE(file.find("a CUDA device"), std::string::npos) << file;
  const auto function = message_of([] { Library({"libm.so.6"}, "a test").find("essh_nowhere"); });
  EXPECT_NE(function.find("essh_nowhere"), std::string::npos) << function;
}

}  // namespace
}  // namespace essh::cuda
