#include "essh/base/json.h"

#include <gtest/gtest.h>

#include "essh/base/error.h"

namespace essh {
namespace {

std::string message(std::string_view text, JsonLimits limits = {}) {
  try {
    parse_json(text, "here", limits);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::BadFile);
    return error.what();
  }
  return "accepted";
}

TEST(Json, ReadsValues) {
  const auto value = parse_json(R"({"a":[1,2.5,"x",null,true]})", "here");
  EXPECT_EQ(value["a"][0], 1);
  EXPECT_EQ(value["a"].size(), 5u);
}

TEST(Json, RefusesWhatTheLibraryTakesSilently) {
  EXPECT_EQ(message(R"({"a":1,"a":2})"), "here: the key \"a\" occurs twice in one object");
  EXPECT_EQ(message(std::string(100, '[')), "here: JSON nested deeper than 64 levels");
  EXPECT_EQ(message(std::string(2000000, '[')), "here: JSON nested deeper than 64 levels");
  EXPECT_EQ(message("{} x"), "here: not valid JSON at byte 4");
  EXPECT_EQ(message(std::string_view("{}\0x", 4)), "here: not valid JSON at byte 3");
  EXPECT_EQ(message("\"\xff\""), "here: not valid JSON at byte 2");
  EXPECT_EQ(message("[1e999]"), "here: not valid JSON at byte 6");
  EXPECT_EQ(message("[1,2,3]", {.values = 3}), "here: more than 3 JSON values");
  EXPECT_EQ(message("[1,2,3]", {.bytes = 3}), "here: 7 bytes of JSON, the limit is 3");
}

TEST(Json, KeepsNestedMembersInOrder) {
  const std::string text = R"({"b":{"z":[{"k":1},[]],"a":null},"a":[[true],{}]})";
  EXPECT_EQ(to_text(parse_json(text, "here")), text);
}

TEST(Json, TimeIsLinearInTheKeys) {
  std::string text = "{";
  for (int i = 0; i < 300000; ++i) text += fmt::format("{}\"key{}\":{}", i ? "," : "", i, i);
  EXPECT_EQ(parse_json(text + "}", "here").size(), 300000u);  // minutes if every key were searched for
}

TEST(Json, TextNeverThrowsOnBadUtf8) {
  EXPECT_EQ(to_text(Json("\xff")), "\"\xef\xbf\xbd\"");
}

}  // namespace
}  // namespace essh
