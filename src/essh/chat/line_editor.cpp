#include "essh/chat/line_editor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <utility>

#include "essh/base/file.h"
#include "essh/text/utf8.h"

namespace essh::chat {
namespace {
namespace fs = std::filesystem;

constexpr char kEscape = '\x1b';
constexpr std::string_view kPasteEnd = "\x1b[201~";
constexpr std::uint64_t kMostBytes = 4u << 20;

// One line of the history file: line breaks and backslashes are escaped.
std::string packed(std::string_view line) {
  std::string out;
  for (const char c : line) out += c == '\n' ? "\\n" : c == '\\' ? "\\\\" : std::string(1, c);
  return out;
}

std::string unpacked(std::string_view line) {
  std::string out;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const bool pair = line[i] == '\\' && i + 1 < line.size();
    if (pair) ++i;
    out += pair && line[i] == 'n' ? '\n' : line[i];
  }
  return out;
}

struct Range {
  char32_t first, last;
};
// Combining marks and joiners.
constexpr std::array<Range, 12> kNarrow = {{{0x300, 0x36f},
                                            {0x483, 0x489},
                                            {0x591, 0x5bd},
                                            {0x610, 0x61a},
                                            {0x64b, 0x65f},
                                            {0x900, 0x903},
                                            {0x93a, 0x94f},
                                            {0x1ab0, 0x1aff},
                                            {0x200b, 0x200f},
                                            {0x20d0, 0x20ff},
                                            {0xfe00, 0xfe0f},
                                            {0xfe20, 0xfe2f}}};
// East Asian wide and fullwidth characters, and emoji.
constexpr std::array<Range, 11> kWide = {{{0x1100, 0x115f},
                                          {0x2e80, 0x303e},
                                          {0x3041, 0x33ff},
                                          {0x3400, 0x4dbf},
                                          {0x4e00, 0x9fff},
                                          {0xa000, 0xa4cf},
                                          {0xac00, 0xd7a3},
                                          {0xf900, 0xfaff},
                                          {0xff00, 0xff60},
                                          {0x1f300, 0x1faff},
                                          {0x20000, 0x3fffd}}};

template <std::size_t n>
bool within(const std::array<Range, n>& ranges, char32_t code) {
  for (const auto& range : ranges) {
    if (code >= range.first && code <= range.last) return true;
  }
  return false;
}

int columns_of(char32_t code) {
  return within(kNarrow, code) ? 0 : within(kWide, code) ? 2 : 1;
}

bool is_word(char c) {
  return c != ' ' && c != '\t' && c != '\n';
}

}  // namespace

History::History(fs::path file) : file_(std::move(file)) {
  std::error_code ignored;
  if (file_.empty() || !fs::exists(file_, ignored)) return;
  std::string text;
  try {
    text = read_text(file_, kMostBytes);
  } catch (const std::exception&) {
    file_.clear();
    return;
  }
  for (std::size_t begin = 0; begin < text.size();) {
    const auto end = std::min(text.find('\n', begin), text.size());
    if (end > begin) lines_.push_back(unpacked(to_valid_utf8(text.substr(begin, end - begin))));
    begin = end + 1;
  }
  if (lines_.size() <= kMost) return;
  lines_.erase(lines_.begin(), lines_.end() - static_cast<std::ptrdiff_t>(kMost));
  std::string kept;
  for (const auto& line : lines_) kept += packed(line) + "\n";
  try {
    write_durably(file_, kept);  // keeps the mode
  } catch (const std::exception&) {
    file_.clear();
  }
}

void History::add(const std::string& line) {
  if (line.empty() || (!lines_.empty() && lines_.back() == line)) return;
  lines_.push_back(line);
  if (file_.empty()) return;
  std::error_code ignored;
  fs::create_directories(file_.parent_path(), ignored);
  const int file = ::open(file_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (file < 0) return;
  const auto text = packed(line) + "\n";
  if (::write(file, text.data(), text.size()) < 0) file_.clear();
  ::close(file);
}

fs::path history_file() {
  const char* const state = std::getenv("XDG_STATE_HOME");
  const char* const home = std::getenv("HOME");
  if (state && *state == '/') return fs::path(state) / "essh" / "chat_history";
  if (home && *home) return fs::path(home) / ".local" / "state" / "essh" / "chat_history";
  return {};
}

int columns_of(std::string_view text) {
  int columns = 0;
  for (std::size_t i = 0; i < text.size();) {
    const auto c = utf8_char(text, i);
    columns += c.valid ? columns_of(c.code) : 1;
    i += c.length;
  }
  return columns;
}

LineEditor::LineEditor(std::string prompt, History& history)
    : prompt_(std::move(prompt)), history_(history), place_(history.lines().size()) {}

std::string LineEditor::take() {
  cursor_ = 0;
  place_ = history_.lines().size();
  draft_.clear();
  return std::exchange(text_, {});
}

// Combining marks move with their base character.
std::size_t LineEditor::left(std::size_t at) const {
  while (at > 0) {
    at = utf8_previous(text_, at);
    if (columns_of(utf8_char(text_, at).code) > 0) break;
  }
  return at;
}

std::size_t LineEditor::right(std::size_t at) const {
  if (at < text_.size()) at += utf8_char(text_, at).length;
  while (at < text_.size() && columns_of(utf8_char(text_, at).code) == 0) at += utf8_char(text_, at).length;
  return at;
}

std::size_t LineEditor::word_left(std::size_t at) const {
  while (at > 0 && !is_word(text_[at - 1])) --at;
  while (at > 0 && is_word(text_[at - 1])) --at;
  return at;
}

std::size_t LineEditor::word_right(std::size_t at) const {
  while (at < text_.size() && !is_word(text_[at])) ++at;
  while (at < text_.size() && is_word(text_[at])) ++at;
  return at;
}

void LineEditor::insert(std::string_view text) {
  text_.insert(cursor_, text);
  cursor_ += text.size();
}

void LineEditor::erase(std::size_t begin, std::size_t end, bool keep) {
  if (keep) killed_ = text_.substr(begin, end - begin);
  text_.erase(begin, end - begin);
  cursor_ = begin;
}

// Up and down; the line being typed is kept at the end.
void LineEditor::recall(int step) {
  const auto& lines = history_.lines();
  if ((step < 0 && place_ == 0) || (step > 0 && place_ == lines.size())) return;
  if (place_ == lines.size()) draft_ = text_;
  place_ = step < 0 ? place_ - 1 : place_ + 1;
  text_ = place_ == lines.size() ? draft_ : lines[place_];
  cursor_ = text_.size();
}

LineEditor::Event LineEditor::key(unsigned char byte) {
  const char c = static_cast<char>(byte);
  if (pasting_) {
    held_ += c == '\r' ? '\n' : c;
    if (!held_.ends_with(kPasteEnd)) return Event::None;
    pasting_ = false;
    held_.resize(held_.size() - kPasteEnd.size());
    std::string clean;
    for (const char one : to_valid_utf8(std::exchange(held_, {}))) {
      const auto code = static_cast<unsigned char>(one);
      if ((code < ' ' || code == 0x7f) && one != '\n' && one != '\t') continue;
      clean += one == '\t' ? ' ' : one;
    }
    insert(clean);
    return Event::None;
  }
  if (!sequence_.empty()) {
    sequence_ += c;
    const bool opened = sequence_.size() == 2 && (c == '[' || c == 'O');
    const bool inside = sequence_.size() > 2 && ((c >= '0' && c <= '9') || c == ';') && sequence_.size() < 16;
    if (!opened && !inside) escape(std::exchange(sequence_, {}));
    return Event::None;
  }
  if (c == kEscape) {
    held_.clear();
    sequence_ = c;
    return Event::None;
  }
  if (byte < ' ' || byte == 0x7f) {
    held_.clear();
    return control(byte);
  }
  held_ += c;
  const auto found = utf8_char(held_, 0);
  if (found.cut) return Event::None;
  if (found.valid && !(found.code >= 0x80 && found.code < 0xa0)) insert(held_);
  held_.clear();
  return Event::None;
}

LineEditor::Event LineEditor::control(unsigned char byte) {
  constexpr auto ctrl = [](char letter) { return static_cast<unsigned char>(letter & 0x1f); };
  if (byte == '\r' || byte == '\n') return Event::Line;
  if (byte == ctrl('C')) {
    take();
    return Event::Cancelled;
  }
  if (byte == ctrl('D') && text_.empty()) return Event::End;
  if (byte == ctrl('D')) erase(cursor_, right(cursor_), false);
  if (byte == ctrl('A')) cursor_ = 0;
  if (byte == ctrl('E')) cursor_ = text_.size();
  if (byte == ctrl('B')) cursor_ = left(cursor_);
  if (byte == ctrl('F')) cursor_ = right(cursor_);
  if (byte == ctrl('H') || byte == 0x7f) erase(left(cursor_), cursor_, false);
  if (byte == ctrl('K')) erase(cursor_, text_.size(), true);
  if (byte == ctrl('U')) erase(0, cursor_, true);
  if (byte == ctrl('W')) erase(word_left(cursor_), cursor_, true);
  if (byte == ctrl('Y')) insert(killed_);
  if (byte == ctrl('P')) recall(-1);
  if (byte == ctrl('N')) recall(1);
  return Event::None;
}

void LineEditor::escape(std::string_view sequence) {
  const auto key = sequence.substr(1);
  const auto is = [&](std::initializer_list<std::string_view> names) {
    for (const auto name : names) {
      if (key == name) return true;
    }
    return false;
  };
  if (is({"[A", "OA"})) recall(-1);
  if (is({"[B", "OB"})) recall(1);
  if (is({"[C", "OC"})) cursor_ = right(cursor_);
  if (is({"[D", "OD"})) cursor_ = left(cursor_);
  if (is({"[H", "OH", "[1~", "[7~"})) cursor_ = 0;
  if (is({"[F", "OF", "[4~", "[8~"})) cursor_ = text_.size();
  if (is({"[3~"})) erase(cursor_, right(cursor_), false);
  if (is({"[1;5C", "[1;3C", "f"})) cursor_ = word_right(cursor_);
  if (is({"[1;5D", "[1;3D", "b"})) cursor_ = word_left(cursor_);
  if (is({"d"})) erase(cursor_, word_right(cursor_), true);
  if (is({"\x7f"})) erase(word_left(cursor_), cursor_, true);
  if (is({"[200~"})) pasting_ = true;
}

std::string LineEditor::draw(int columns) const {
  const int before = columns_of(prompt_);
  const int room = std::max(4, columns - before - 1);
  // Scrolls until the cursor is visible.
  std::size_t begin = 0;
  while (columns_of(std::string_view(text_).substr(begin, cursor_ - begin)) > room) begin = right(begin);
  std::string shown;
  int used = 0, at = before;
  for (std::size_t i = begin; i < text_.size();) {
    const auto next = right(i);
    const auto piece = std::string_view(text_).substr(i, next - i);
    const int width = columns_of(piece);
    if (used + width > room) break;
    if (i < cursor_) at += width;
    shown += piece == "\n" ? "↵" : std::string(piece);
    used += width;
    i = next;
  }
  auto drawing = fmt::format("\r{}{}\x1b[K\r", prompt_, shown);
  if (at > 0) drawing += fmt::format("\x1b[{}C", at);
  return drawing;
}

}  // namespace essh::chat
