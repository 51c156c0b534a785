#pragma once
#include <termios.h>

#include <optional>
#include <string_view>

namespace essh::verbs {

// The terminal in front of a person. Its settings are put back at the end, and before a signal ends the process.
class Terminal {
 public:
  // Standard input and output are one, and it knows escape codes.
  static bool present();

  Terminal();
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  // Every key arrives at once as its bytes, Ctrl-C too.
  void read_keys();
  // Ctrl-C is a signal; what is typed is not shown and waits for the next read_keys().
  void watch();

  // The next byte; none at the end.
  std::optional<unsigned char> byte();
  // More bytes have come.
  bool waiting() const;
  int columns() const;
  void write(std::string_view text);

 private:
  void set(bool signals);
};

}  // namespace essh::verbs
