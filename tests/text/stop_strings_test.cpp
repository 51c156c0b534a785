#include "essh/text/stop_strings.h"

#include <gtest/gtest.h>

namespace essh {
namespace {

// The text shown for a stream in pieces of `size` bytes, and whether it was stopped.
std::pair<std::string, bool> shown(const std::string& text, std::size_t size, const std::vector<std::string>& strings) {
  StopStrings stops(strings);
  std::string out;
  for (std::size_t i = 0; i < text.size() && !stops.found(); i += size) out += stops.add(text.substr(i, size));
  return {out + stops.flush(), stops.found()};
}

TEST(StopStrings, EndsBeforeTheFirstStringHoweverTheStreamIsCut) {
  for (std::size_t size = 1; size < 12; ++size) {
    EXPECT_EQ(shown("one END two", size, {"END"}), (std::pair{std::string("one "), true})) << size;
    EXPECT_EQ(shown("aab", size, {"ab"}), (std::pair{std::string("a"), true})) << size;
    EXPECT_EQ(shown("x\n\ny", size, {"zzz", "\n\n"}), (std::pair{std::string("x"), true})) << size;
    EXPECT_EQ(shown("one EN", size, {"END"}), (std::pair{std::string("one EN"), false})) << size;
    EXPECT_EQ(shown("text", size, {"", "q"}), (std::pair{std::string("text"), false})) << size;
  }
}

TEST(StopStrings, TheEarliestOfSeveralWins) {
  EXPECT_EQ(shown("a stop b halt", 100, {"halt", "stop"}), (std::pair{std::string("a "), true}));
}

TEST(StopStrings, ShowsTextAtOnceThatCannotBecomeAString) {
  StopStrings stops({"END"});
  EXPECT_EQ(stops.add("text"), "text");
  EXPECT_EQ(stops.add("moreE"), "more");
  EXPECT_EQ(stops.add("x"), "Ex");
}

}  // namespace
}  // namespace essh
