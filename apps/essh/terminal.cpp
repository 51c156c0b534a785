#include "apps/essh/terminal.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "apps/essh/standard_streams.h"

namespace essh::verbs {
namespace {

constexpr std::array<int, 4> kSignals = {SIGTERM, SIGHUP, SIGQUIT, SIGINT};
constexpr std::string_view kPasteOn = "\x1b[?2004h", kPasteOff = "\x1b[?2004l";

// The only state that the signal handler may use.
termios usual{};
std::array<struct sigaction, kSignals.size()> handlers{};

void put_back(int number) {
  ::tcsetattr(STDIN_FILENO, TCSANOW, &usual);
  if (::write(STDOUT_FILENO, kPasteOff.data(), kPasteOff.size()) < 0) errno = 0;
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    if (kSignals[i] == number) ::sigaction(number, &handlers[i], nullptr);
  }
  ::raise(number);
}

}  // namespace

bool Terminal::present() {
  const char* const kind = std::getenv("TERM");
  return ::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1 && !(kind && std::strcmp(kind, "dumb") == 0);
}

Terminal::Terminal() {
  ::tcgetattr(STDIN_FILENO, &usual);
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    struct sigaction action {};
    action.sa_handler = put_back;
    ::sigaction(kSignals[i], &action, &handlers[i]);
  }
}

Terminal::~Terminal() {
  ::tcsetattr(STDIN_FILENO, TCSANOW, &usual);
  if (::write(STDOUT_FILENO, kPasteOff.data(), kPasteOff.size()) < 0) errno = 0;
  for (std::size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &handlers[i], nullptr);
}

void Terminal::set(bool signals) {
  auto settings = usual;
  settings.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | (signals ? 0 : ISIG | IEXTEN));
  settings.c_iflag &= ~static_cast<tcflag_t>(ICRNL | IXON | (signals ? 0 : BRKINT | INPCK | ISTRIP));
  settings.c_cc[VMIN] = 1;
  settings.c_cc[VTIME] = 0;
  ::tcsetattr(STDIN_FILENO, TCSADRAIN, &settings);
}

void Terminal::read_keys() {
  set(false);
  write(kPasteOn);
}

void Terminal::watch() {
  write(kPasteOff);
  set(true);
}

std::optional<unsigned char> Terminal::byte() {
  unsigned char byte = 0;
  for (;;) {
    const auto count = ::read(STDIN_FILENO, &byte, 1);
    if (count == 1) return byte;
    if (count == 0 || errno != EINTR) return std::nullopt;
  }
}

bool Terminal::waiting() const {
  pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  return ::poll(&input, 1, 0) == 1 && (input.revents & POLLIN) != 0;
}

int Terminal::columns() const {
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

void Terminal::write(std::string_view text) {
  write_standard_output(text);
}

}  // namespace essh::verbs
