#include "essh/base/progress.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "essh/base/log.h"
#include "essh/base/units.h"

namespace essh {

Progress::Progress(std::string title, double total, std::string unit, double scale, Clock::time_point (*now)())
    : now_(now),
      title_(std::move(title)),
      unit_(std::move(unit)),
      total_(total),
      scale_(scale),
      terminal_(::isatty(STDERR_FILENO) == 1),
      start_(now()),
      drawn_(terminal_ ? start_ - std::chrono::hours(1) : start_) {}

Progress::~Progress() {
  if (!finished_ && terminal_ && log::level() != log::Level::Quiet) fmt::print(stderr, "\n");
}

double Progress::elapsed() const {
  return std::chrono::duration<double>(now_() - start_).count();
}

void Progress::update(double done, std::string_view note) {
  if (first_ < 0) first_ = done;
  done_ = done;
  note_ = note;
  const auto now = now_();
  if (now - drawn_ < (terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(30000))) return;
  drawn_ = now;
  draw(done, note, false);
}

void Progress::finish(std::string_view note) {
  draw(done_, note.empty() ? std::string_view(note_) : note, true);
  finished_ = true;
}

void Progress::draw(double done, std::string_view note, bool last) {
  if (log::level() == log::Level::Quiet) return;
  const double seconds = elapsed();
  const double rate = seconds > 0 ? (done - (first_ < 0 ? 0 : first_)) / seconds : 0;
  std::string line = title_;
  if (total_ > 0) line += fmt::format(" {:3.0f}%", 100.0 * done / total_);
  line += fmt::format("  {:.4g} {}/s", rate / scale_, unit_);
  if (last)
    line += fmt::format("  in {}", format_duration(seconds));
  else if (total_ > 0 && rate > 0)
    line += fmt::format("  ETA {}", format_duration((total_ - done) / rate));
  if (!note.empty()) line += fmt::format("  {}", note);
  if (terminal_) {
    winsize size{};
    const std::size_t width = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
    fmt::print(stderr, "\r\x1b[K{}{}", line.substr(0, width - 1), last ? "\n" : "");
  } else {
    fmt::print(stderr, "{}\n", line);
  }
  std::fflush(stderr);
}

}  // namespace essh
