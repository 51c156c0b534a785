#pragma once
#include <termios.h>

#include <optional>
#include <string_view>

namespace essh::verbs {

// An interactive terminal. Restores its settings at the end, and before a signal ends the process.
class Terminal {
 public:
  // Whether standard input and output are a terminal that knows escape codes.
  static bool present();

  Terminal();
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  // Raw mode: every key arrives at once as its bytes, Ctrl-C too.
  void read_keys();
  // Ctrl-C is a signal; typed keys are not shown and wait for the next read_keys().
  void watch();

  // The next byte; none at end of input.
  std::optional<unsigned char> byte();
  // Whether more bytes have arrived.
  bool waiting() const;
  int columns() const;
  void write(std::string_view text);

 private:
  void set(bool signals);
};

}  // namespace essh::verbs
