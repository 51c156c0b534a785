#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace essh::chat {

// Previous lines, oldest first.
class History {
 public:
  // In memory only.
  History() = default;
  // Reads the file and appends to it, mode 0600. A file that cannot be used is ignored: chatting matters more than its
  // history.
  explicit History(std::filesystem::path file);

  // Ignores empty lines and repetitions of the last line.
  void add(const std::string& line);
  const std::vector<std::string>& lines() const { return lines_; }

  static constexpr std::size_t kMost = 1000;

 private:
  std::filesystem::path file_;
  std::vector<std::string> lines_;
};

// Path of the history of `essh chat`: $XDG_STATE_HOME/essh/chat_history, or under ~/.local/state; empty without a home.
std::filesystem::path history_file();

// Terminal columns of the text: 2 for East Asian wide characters and emoji, 0 for combining ones.
int columns_of(std::string_view text);

// A line editor with readline's keys. Independent of the terminal: bytes in, escape codes out.
class LineEditor {
 public:
  enum class Event { None, Line, Cancelled, End };

  // `history` must outlive the editor.
  LineEditor(std::string prompt, History& history);

  // One byte from a terminal in raw mode.
  Event key(unsigned char byte);
  const std::string& text() const { return text_; }
  std::size_t cursor() const { return cursor_; }
  // The line after Event::Line; empties the editor.
  std::string take();
  // Escape codes that draw prompt, line and cursor in one row of `columns`.
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
  std::size_t place_;  // index in the history; its size means the line being typed
  bool pasting_ = false;
};

}  // namespace essh::chat
