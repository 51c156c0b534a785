#include "essh/data/json_field_scanner.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "essh/base/rng.h"

namespace essh {
namespace {

struct Outcome {
  LineFault fault = LineFault::None;
  std::string text;
  bool operator==(const Outcome&) const = default;
};

Outcome scan(std::string_view line, std::size_t cut = std::string_view::npos) {
  JsonFieldScanner scanner("text");
  Outcome outcome;
  scanner.reset();
  if (scanner.feed(line.substr(0, cut), outcome.text) && cut < line.size())
    scanner.feed(line.substr(cut), outcome.text);
  if (!scanner.finish()) outcome = {scanner.fault(), ""};
  return outcome;
}

TEST(JsonFieldScanner, TakesTheOuterField) {
  EXPECT_EQ(scan(R"({"text":"a"})").text, "a");
  EXPECT_EQ(scan(R"( { "id" : [1,{"text":"no"}], "text" : "yes" , "x":null } )").text, "yes");
  EXPECT_EQ(scan(R"({"te\u0078t":"escaped key"})").text, "escaped key");
  EXPECT_EQ(scan(R"({"text":"\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00"})").text, "\"\\/\b\f\n\r\t\xC3\xA9\xF0\x9F\x98\x80");
}

TEST(JsonFieldScanner, LoneSurrogatesBecomeTheReplacementCharacter) {
  EXPECT_EQ(scan(R"({"text":"\ud800x"})").text, "\xEF\xBF\xBDx");
  EXPECT_EQ(scan(R"({"text":"\ud800"})").text, "\xEF\xBF\xBD");
  EXPECT_EQ(scan(R"({"text":"\udc00"})").text, "\xEF\xBF\xBD");
  EXPECT_EQ(scan(R"({"text":"\ud800\ud83d\ude00"})").text, "\xEF\xBF\xBD\xF0\x9F\x98\x80");
  EXPECT_EQ(scan(R"({"text":"\ud800\n"})").text, "\xEF\xBF\xBD\n");
}

TEST(JsonFieldScanner, Faults) {
  EXPECT_EQ(scan("[1]").fault, LineFault::NotObject);
  EXPECT_EQ(scan("").fault, LineFault::NotJson);
  EXPECT_EQ(scan(R"({"text":"a")").fault, LineFault::NotJson);
  EXPECT_EQ(scan(R"({"text":"a"}})").fault, LineFault::NotJson);
  EXPECT_EQ(scan(R"({"text":"a",})").fault, LineFault::NotJson);
  EXPECT_EQ(scan("{\"text\":\"a\tb\"}").fault, LineFault::NotJson);
  EXPECT_EQ(scan(R"({"textual":"a"})").fault, LineFault::FieldMissing);
  EXPECT_EQ(scan(R"({"tex":"a"})").fault, LineFault::FieldMissing);
  EXPECT_EQ(scan(R"({"text":7})").fault, LineFault::FieldNotString);
  EXPECT_EQ(scan(R"({"text":"a","text":"b"})").fault, LineFault::FieldTwice);
  EXPECT_EQ(scan(R"({"x":)" + std::string(100, '[')).fault, LineFault::TooDeep);
}

Outcome by_parser(const std::string& line) {
  nlohmann::json object;
  try {
    object = nlohmann::json::parse(line);
  } catch (const nlohmann::json::exception&) {
    return {LineFault::NotJson, ""};
  }
  if (!object.is_object() || !object.contains("text") || !object["text"].is_string())
    return {LineFault::FieldMissing, ""};
  return {LineFault::None, object["text"]};
}

// Random damage to valid lines: the scanner accepts exactly the lines that a full parser accepts, with the same text,
// wherever the line is cut.
TEST(JsonFieldScanner, AgreesWithAParserOnDamagedLines) {
  const std::string seeds[] = {
      R"({"text":"one \u0041 \n two","meta":{"a":[1,-2.5e+3,0.1,true,false,null,"x"]},"id":12})",
      R"({"a":[[],{}],"b":{"text":"inner"},"text":"","c":-0})",
      R"({"k":"\ud83d\ude00 long long long long string \\ \" ","text":"caf\u00e9 plain run of some length"})",
  };
  constexpr std::string_view kBytes = "{}[]\",:\\u0129eE+-.tfn ax";
  Rng rng(7);
  int accepted = 0;
  for (int round = 0; round < 60000; ++round) {
    std::string line = seeds[rng.below(3)];
    for (auto edits = rng.below(3); edits > 0 && !line.empty(); --edits) {
      const auto at = rng.below(line.size());
      switch (rng.below(3)) {
        case 0:
          line[at] = kBytes[rng.below(kBytes.size())];
          break;
        case 1:
          line.erase(at, 1 + rng.below(3));
          break;
        default:
          line.insert(at, 1, kBytes[rng.below(kBytes.size())]);
      }
    }
    const auto whole = scan(line);
    const auto cut = scan(line, rng.below(line.size() + 1));
    ASSERT_EQ(whole.fault, cut.fault) << line;
    ASSERT_EQ(whole.text, cut.text) << line;
    // Intended differences.
    if (whole.fault == LineFault::FieldTwice || whole.text.find("\xEF\xBF\xBD") != std::string::npos) continue;
    if (line.find("\\ud") != std::string::npos) continue;
    const auto parsed = by_parser(line);
    ASSERT_EQ(whole.fault == LineFault::None, parsed.fault == LineFault::None) << line;
    ASSERT_EQ(whole.text, parsed.text) << line;
    accepted += whole.fault == LineFault::None;
  }
  EXPECT_GT(accepted, 10000);
}

}  // namespace
}  // namespace essh
