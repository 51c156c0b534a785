#include "essh/base/json.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>

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

TEST(Json, ListsOfANameAndAValueMakeAnObject) {
  EXPECT_EQ(to_text(Json{{"a", 1}, {"b", {1.0, 2}}, {"c", {{"d", nullptr}}}}), R"({"a":1,"b":[1.0,2],"c":{"d":null}})");
  EXPECT_EQ(to_text(Json{{"a", 1}, {2, 3}}), R"([["a",1],[2,3]])");
  EXPECT_EQ(to_text(Json::array({{"a", 1}})), R"([["a",1]])");
  EXPECT_EQ(to_text(Json::array()), "[]");
  EXPECT_EQ(to_text(Json::object(), 2), "{}");
  EXPECT_EQ(to_text(Json(std::map<std::string, std::vector<bool>>{{"x", {true, false}}})), R"({"x":[true,false]})");
}

TEST(Json, MembersAreSetFoundAndErased) {
  Json value;
  value["a"] = 1;
  value["b"]["c"] = "text";
  value.update({{"a", 2}, {"d", false}});
  EXPECT_EQ(to_text(value), R"({"a":2,"b":{"c":"text"},"d":false})");
  EXPECT_EQ(value.value("a", 0), 2);
  EXPECT_EQ(value.value("z", 7), 7);
  EXPECT_TRUE(value.find("z") == value.end());
  EXPECT_FALSE(Json("text").contains("a"));
  value.erase("a");
  value.erase("z");
  EXPECT_EQ(value.begin().key(), "b");
  const auto next = value.erase(value.begin());
  EXPECT_EQ(next.key(), "d");
  EXPECT_EQ(value, (Json{{"d", false}}));
  const auto& fixed = value;
  EXPECT_THROW(fixed["a"], Error);
  EXPECT_THROW(fixed["d"].get<double>(), Error);
  EXPECT_THROW(fixed["d"].text(), Error);
}

TEST(Json, CopiesAreIndependentAndMovesLeaveNull) {
  Json first = {{"a", {1, 2}}};
  Json second = first;
  second["a"].push_back(3);
  EXPECT_EQ(first["a"].size(), 2u);
  const Json third = std::move(second);
  EXPECT_TRUE(second.is_null());
  EXPECT_EQ(third["a"].size(), 3u);
  first = first["a"];
  EXPECT_EQ(to_text(first), "[1,2]");
}

TEST(Json, NumbersKeepTheirBits) {
  const std::string text = "[0,-1,18446744073709551615,-9223372036854775808,0.1,1.0,1e+300,5e-324,-0.0]";
  const auto value = parse_json(text, "here");
  EXPECT_EQ(to_text(value), text);
  EXPECT_EQ(value[2].get<std::uint64_t>(), std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(value[0], 0.0);
  EXPECT_FALSE(value[2] == value[1]);
  EXPECT_TRUE(value[0].is_number_unsigned());
  EXPECT_FALSE(value[1].is_number_unsigned());
  EXPECT_FALSE(value[5].is_number_integer());
  EXPECT_EQ(to_text(Json(std::numeric_limits<double>::infinity())), "null");
}

TEST(Json, LinesAreIndented) {
  EXPECT_EQ(to_text(Json{{"a", {1, 2}}, {"b", Json::array()}}, 2),
            "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": []\n}");
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
  EXPECT_EQ(parse_json(text + "}", "here").size(), 300000u);  // takes minutes if every key is searched for
}

TEST(Json, TextIsEscapedWhereItMustBe) {
  EXPECT_EQ(to_text(Json("\"\\\n\x01\x7f\xc3\xa4/")), "\"\\\"\\\\\\n\\u0001\x7f\xc3\xa4/\"");
}

TEST(Json, TextNeverThrowsOnBadUtf8) {
  EXPECT_EQ(to_text(Json("\xff")), "\"\xef\xbf\xbd\"");
}

}  // namespace
}  // namespace essh
