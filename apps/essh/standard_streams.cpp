#include "apps/essh/standard_streams.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

#include "essh/base/error.h"
#include "essh/text/utf8.h"

namespace essh::verbs {

bool input_is_piped() {
  struct stat status {};
  return ::fstat(STDIN_FILENO, &status) == 0 && (S_ISFIFO(status.st_mode) || S_ISREG(status.st_mode));
}

std::string read_standard_input() {
  std::string text;
  char buffer[1 << 16];
  while (const std::size_t count = std::fread(buffer, 1, sizeof buffer, stdin)) text.append(buffer, count);
  if (std::ferror(stdin)) fail(ErrorKind::BadFile, "standard input: cannot be read");
  return text;
}

bool output_is_terminal() {
  return ::isatty(STDOUT_FILENO) == 1;
}

std::string harmless(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const auto c = utf8_char(text, i);
    const bool control = (c.code < 0x20 || (c.code >= 0x7f && c.code < 0xa0)) && c.code != '\n' && c.code != '\t';
    out += !c.valid || control ? kReplacementChar : text.substr(i, c.length);
    i += c.length;
  }
  return out;
}

void write_standard_output(std::string_view bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), stdout) != bytes.size() || std::fflush(stdout) != 0)
    fail(ErrorKind::BadFile, "standard output: cannot be written");
}

}  // namespace essh::verbs
