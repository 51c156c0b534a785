#include "apps/essh/standard_streams.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

#include "essh/base/error.h"

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

void write_standard_output(std::string_view bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), stdout) != bytes.size() || std::fflush(stdout) != 0)
    fail(ErrorKind::BadFile, "standard output: cannot be written");
}

}  // namespace essh::verbs
