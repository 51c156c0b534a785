#pragma once
#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace essh {

enum class ErrorKind { Usage, BadFile, Unsupported, OutOfMemory, Device, Interrupted, Internal };

// Every failure that input, a file or a device can cause. The message starts with the place and says what to do:
// "config.json: hidden_size must be between 1 and 16777216, got -4".
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

template <class... Args>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(kind, fmt::format(format, std::forward<Args>(args)...));
}

// Exit code of the command line for an error of this kind; documented in docs/cli.md.
int exit_code(ErrorKind kind);

// For our own bugs only, never for input.
[[noreturn]] void assertion_failed(const char* condition, const char* file, int line);

}  // namespace essh

#define ESSH_ASSERT(condition) \
  ((condition) ? static_cast<void>(0) : ::essh::assertion_failed(#condition, __FILE__, __LINE__))
