#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace essh::chat {

// Lines of before, oldest first.
class History {
 public:
  // Kept in memory only.
  History() = default;
  // Reads the file and appends to it; it belongs to the user alone (mode 0600). A file that cannot be used is passed
  // over: a conversation is worth more than its history.
  explicit History(std::filesystem::path file);

  // Not an empty line, nor the last one again.
  void add(const std::string& line);
  const std::vector<std::string>& lines() const { return lines_; }

  static constexpr std::size_t kMost = 1000;

 private:
  std::filesystem::path file_;
  std::vector<std::string> lines_;
};

// Where the history of `essh chat` lies: $XDG_STATE_HOME/essh/chat_history, or in ~/.local/state; empty without a home.
std::filesystem::path history_file();

// Columns of a terminal that the text takes: 2 for East Asian wide characters and emoji, 0 for combining ones.
int columns_of(std::string_view text);

// A line being typed, and the keys of readline. It knows no terminal: bytes come in, a drawing comes out.
class LineEditor {
 public:
  enum class Event { None, Line, Cancelled, End };

  // The history outlives it.
  LineEditor(std::string prompt, History& history);

  // A byte as the terminal sends it in raw mode.
  Event key(unsigned char byte);
  const std::string& text() const { return text_; }
  std::size_t cursor() const { return cursor_; }
  // The line after Event::Line; the editor is empty then.
  std::string take();
  // Escape codes that draw prompt, line and cursor into one row of so many columns.
  std::string draw(int columns) const;

 private:
  Event control(unsigned char byte);
  void escape(std::string_view sequence);
  void insert(std::string_view text);
  void recall(int step);
  void erase(std::size_t begin, std::size_t end, bool keep);
  std::size_t left(std::size_t at) const;
  std::size_t right(std::size_t at) const;
  std::size_t word_left(std::size_t at) const;
  std::size_t word_right(std::size_t at) const;

  std::string prompt_;
  History& history_;
  std::string text_, held_, sequence_, killed_, draft_;
  std::size_t cursor_ = 0;
  std::size_t place_;  // in the history; its size: the line being typed
  bool pasting_ = false;
};

}  // namespace essh::chat
