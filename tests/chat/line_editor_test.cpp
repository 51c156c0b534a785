#include "essh/chat/line_editor.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>

namespace essh::chat {
namespace {
namespace fs = std::filesystem;
using Event = LineEditor::Event;

struct LineEditorTest : ::testing::Test {
  History history;
  std::optional<LineEditor> editor;
  void SetUp() override { editor.emplace("> ", history); }

  Event type(std::string_view bytes) {
    Event last = Event::None;
    for (const char c : bytes) last = editor->key(static_cast<unsigned char>(c));
    return last;
  }
  // The line with | at the cursor.
  std::string line() const {
    auto text = editor->text();
    return text.insert(editor->cursor(), "|");
  }
  void enter(const std::string& text) {
    type(text);
    ASSERT_EQ(type("\r"), Event::Line);
    history.add(editor->take());
    editor.emplace("> ", history);
  }
};

TEST_F(LineEditorTest, TypesAndEnds) {
  EXPECT_EQ(type("hello"), Event::None);
  EXPECT_EQ(type("\r"), Event::Line);
  EXPECT_EQ(editor->take(), "hello");
  EXPECT_EQ(line(), "|");
  EXPECT_EQ(type("\x04"), Event::End);
  EXPECT_EQ(type("x\x03"), Event::Cancelled);
  EXPECT_EQ(line(), "|");
}

TEST_F(LineEditorTest, MovesByCharacters) {
  type("aé€😀b");
  for (const auto* expected : {"aé€😀|b", "aé€|😀b", "aé|€😀b", "a|é€😀b", "|aé€😀b", "|aé€😀b"}) {
    type("\x1b[D");
    EXPECT_EQ(line(), expected);
  }
  type("\x1b[C\x1bOC");
  EXPECT_EQ(line(), "aé|€😀b");
  type("\x7f");
  EXPECT_EQ(line(), "a|€😀b");
  type("\x04\x1b[3~");
  EXPECT_EQ(line(), "a|b");
  for (const auto* home : {"\x01", "\x1b[H", "\x1b[1~", "\x1bOH"}) {
    type("\x05");
    EXPECT_EQ(line(), "ab|");
    type(home);
    EXPECT_EQ(line(), "|ab");
  }
  type("\x1b[F\x02");
  EXPECT_EQ(line(), "a|b");
  type("\x06");
  EXPECT_EQ(line(), "ab|");
}

TEST_F(LineEditorTest, AMarkGoesWithItsCharacter) {
  type("xe\xcc\x81y");
  type("\x02\x02");
  EXPECT_EQ(line(), "x|e\xcc\x81y");
  type("\x06\x7f");
  EXPECT_EQ(line(), "x|y");
}

TEST_F(LineEditorTest, CutsAndPutsBack) {
  type("one two  three");
  type("\x17");
  EXPECT_EQ(line(), "one two  |");
  type("\x17");
  EXPECT_EQ(line(), "one |");
  type("\x19");
  EXPECT_EQ(line(), "one two  |");
  type(
      "\x01\x1b"
      "f\x0b");
  EXPECT_EQ(line(), "one|");
  type("\x15");
  EXPECT_EQ(line(), "|");
  type("\x19\x19");
  EXPECT_EQ(line(), "oneone|");
  type(
      " x\x1b[1;5D\x1b[1;5D\x1b"
      "d");
  EXPECT_EQ(line(), "| x");
}

TEST_F(LineEditorTest, RecallsAndKeepsWhatWasBegun) {
  enter("first");
  enter("second");
  enter("second");
  ASSERT_EQ(history.lines().size(), 2u);
  type("draft");
  type("\x1b[A");
  EXPECT_EQ(line(), "second|");
  type("\x10");
  EXPECT_EQ(line(), "first|");
  type("\x1b[A");
  EXPECT_EQ(line(), "first|");
  type("\x1b[B\x0e");
  EXPECT_EQ(line(), "draft|");
  type("\x1b[B");
  EXPECT_EQ(line(), "draft|");
}

TEST_F(LineEditorTest, PastesLinesWithoutSendingThem) {
  EXPECT_EQ(type("\x1b[200~one\rtwo\tx\x01\x1b[A\x1b[201~"), Event::None);
  EXPECT_EQ(editor->text(), "one\ntwo x[A");
  EXPECT_NE(editor->draw(80).find("one↵two x"), std::string::npos);
  EXPECT_EQ(type("\r"), Event::Line);
}

TEST_F(LineEditorTest, IgnoresWhatIsNoTextAndNoKey) {
  type(
      "a\xff\xc3(\x1b[99;99Z\x1b[15~\x1bq\xc2\x9b"
      "b");
  EXPECT_EQ(line(), "ab|");
  type("\x1b[");
  for (int i = 0; i < 100; ++i) type("1");
  EXPECT_LT(editor->text().size(), 110u);
}

TEST_F(LineEditorTest, DrawsOneRowAroundTheCursor) {
  type("abc");
  EXPECT_EQ(editor->draw(80), "\r> abc\x1b[K\r\x1b[5C");
  type("\x01");
  EXPECT_EQ(editor->draw(80), "\r> abc\x1b[K\r\x1b[2C");
  type("\x15\x0b");
  for (int i = 0; i < 50; ++i) type(i % 2 ? "x" : "漢");
  const auto drawing = editor->draw(20);
  const auto shown = drawing.substr(1, drawing.find("\x1b[K") - 1);
  EXPECT_LE(columns_of(shown), 19);
  EXPECT_TRUE(drawing.ends_with(std::to_string(columns_of(shown)) + "C"));
  type("\x01");
  EXPECT_NE(editor->draw(20).find("> 漢x"), std::string::npos);
}

TEST(Columns, AsATerminalCounts) {
  EXPECT_EQ(columns_of("abc"), 3);
  EXPECT_EQ(columns_of("é"), 1);
  EXPECT_EQ(columns_of("e\xcc\x81"), 1);
  EXPECT_EQ(columns_of("漢字"), 4);
  EXPECT_EQ(columns_of("😀"), 2);
}

struct HistoryTest : ::testing::Test {
  fs::path folder;
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "essh-history-XXXXXX").string();
    folder = ::mkdtemp(pattern.data());
  }
  void TearDown() override { fs::remove_all(folder); }
};

TEST_F(HistoryTest, IsKeptForTheUserAlone) {
  const auto file = folder / "a" / "b" / "chat_history";
  History first(file);
  first.add("one");
  first.add("two\nlines \\n");
  first.add("");
  struct stat status {};
  ASSERT_EQ(::stat(file.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777u, 0600u);
  const History second(file);
  EXPECT_EQ(second.lines(), (std::vector<std::string>{"one", "two\nlines \\n"}));
}

TEST_F(HistoryTest, IsBounded) {
  const auto file = folder / "h";
  {
    std::ofstream out(file);
    for (std::size_t i = 0; i < History::kMost + 50; ++i) out << "line " << i << "\n";
  }
  const History history(file);
  EXPECT_EQ(history.lines().size(), History::kMost);
  EXPECT_EQ(history.lines().front(), "line 50");
  EXPECT_EQ(History(file).lines(), history.lines());
}

TEST_F(HistoryTest, AFileThatCannotBeUsedIsNoHindrance) {
  History directory(folder);
  directory.add("x");
  EXPECT_EQ(directory.lines().size(), 1u);
  std::ofstream(folder / "file") << "x";
  History below(folder / "file" / "below");
  below.add("x");
  EXPECT_EQ(below.lines().size(), 1u);
}

TEST_F(HistoryTest, LiesWhereTheUserKeepsStates) {
  ::setenv("XDG_STATE_HOME", "/s", 1);
  EXPECT_EQ(history_file(), "/s/essh/chat_history");
  ::setenv("XDG_STATE_HOME", "relative", 1);
  ::setenv("HOME", "/h", 1);
  EXPECT_EQ(history_file(), "/h/.local/state/essh/chat_history");
}

}  // namespace
}  // namespace essh::chat
