#include "essh/evaluate/task_template.h"

#include <gtest/gtest.h>

#include "essh/base/error.h"
#include "essh/base/json.h"

namespace essh {
namespace {

std::string shown(const std::string& text, const Json& record) {
  try {
    return render(text, record, "t");
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(TaskTemplate, TextComesFromPaths) {
  const Json record = {{"a", "x"}, {"n", 3}, {"flag", true}, {"deep", {{"er", "y"}}}, {"list", {"p", "q"}}};
  EXPECT_EQ(shown("[{{a}}] {{n}} {{flag}} {{deep.er}}", record), "[x] 3 true y");
  EXPECT_EQ(shown("{{b}}", record), "t: no field \"b\"");
  EXPECT_EQ(shown("{{a.b}}", record), "t: no field \"b\"");
  EXPECT_EQ(shown("{{list}}", record), "t: expected text or a number, got \"['p','q']\"");
  EXPECT_EQ(shown("{{a", record), "t: {{ without }} in \"{{a\"");
  EXPECT_EQ(shown("{{a|nosuch}}", record), "t: no filter \"nosuch\"");
}

TEST(TaskTemplate, ListsOfChoices) {
  const Json record = {{"choices", {{{"text", " one"}, {"label", "A"}}, {{"text", "two "}, {"label", "B"}}}},
                       {"x", "z"}};
  const std::vector<std::string> mapped = {"one", "two", "z!", "z"};
  EXPECT_EQ(render_list({"{{choices.text|strip}}", "{{x}}!", "{{x}}"}, record, "t"), mapped);
}

// The expected texts were printed by Python.
TEST(TaskTemplate, FiltersAreThoseOfPython) {
  const auto one = [](const std::string& filter, const std::string& text) {
    return shown("{{v|" + filter + "}}", {{"v", text}});
  };
  EXPECT_EQ(one("strip", "\xC2\xA0 \t a b\xE3\x80\x80\n"), "a b");
  EXPECT_EQ(one("lstrip", " a "), "a ");
  EXPECT_EQ(one("capitalize", "\xC3\xA9T\xC3\x89 X"), "\xC3\x89t\xC3\xA9 x");
  EXPECT_EQ(one("capitalize", ""), "");
  EXPECT_EQ(one("lower_first", "\xC3\x89T"), "\xC3\xA9T");
  EXPECT_EQ(one("drop_last", "ab\xC3\xA9"), "ab");
  EXPECT_EQ(one("drop:2", "\xC3\xA9.x"), "x");
  EXPECT_EQ(one("drop:2", "x"), "");
  EXPECT_EQ(one("before:_", "a _ b _"), "a ");
  EXPECT_EQ(one("after:_|strip", "a _ b _"), "b _");
  EXPECT_EQ(one("after:_", "none"), "t: no \"_\" in \"none\"");
  EXPECT_EQ(one("last_word", "a b  c"), "c");
  EXPECT_EQ(one("before_last_word", "a b  c"), "a b ");
  EXPECT_EQ(one("before_last_word", "alone"), "");
  EXPECT_EQ(one("map:cause=because,effect=therefore", "effect"), "therefore");
  EXPECT_EQ(one("map:cause=because", "other"), "t: filter map has no text for \"other\"");
  EXPECT_EQ(one("spaced_periods", "a.b. "), "a. b.");
  EXPECT_EQ(one("wikihow", " A [title] b [step] c  [x\ny] [sub]d   e "), "A. b c [x\ny] d  e");
  EXPECT_EQ(render_list({"{{v|lettered}}"}, {{"v", "(A) one (B) two (2) (C) three"}}, "t"),
            (std::vector<std::string>{"one", "two (2)", "three"}));
}

TEST(TaskTemplate, TrailingSpaceIsPythons) {
  EXPECT_EQ(trailing_space("ab \n\xE2\x80\x83"), 2u);
  EXPECT_EQ(trailing_space("ab\xE2\x80\x8B"), 5u) << "a zero-width space is none";
  EXPECT_EQ(trailing_space(" "), 0u);
}

}  // namespace
}  // namespace essh
