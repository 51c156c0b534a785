#include "essh/base/interrupt.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace essh {
namespace {

volatile std::sig_atomic_t interrupted = 0;
const char* message = nullptr;
std::size_t message_size = 0;

// Async-signal-safe calls only.
void note(int signal) {
  const int before = errno;
  interrupted = 1;
  std::signal(signal, SIG_DFL);
  if (message_size > 0 && ::write(STDERR_FILENO, message, message_size) < 0) errno = before;
  errno = before;
}

}  // namespace

InterruptScope::InterruptScope(std::string words) : words_(words.empty() ? "" : "\n" + words + "\n") {
  interrupted = 0;
  message = words_.data();
  message_size = words_.size();
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, note);
}

InterruptScope::~InterruptScope() {
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_DFL);
  message_size = 0;
}

bool InterruptScope::requested() const {
  return interrupted != 0;
}

}  // namespace essh
