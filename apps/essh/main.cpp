#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <filesystem>
#include <iostream>
#include <new>
#include <system_error>

#include "apps/essh/verbs.h"
#include "essh/base/error.h"
#include "essh/base/log.h"
#include "essh/base/signals.h"
#include "essh/comm/group.h"

namespace {

// If the caller closed a standard stream, the next file opened would become it. Takes the descriptor with a substitute
// whose reads and writes fail.
void occupy_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) == -1) ::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

[[noreturn]] void fail_output() {
  essh::fail(essh::ErrorKind::BadFile, "standard output: cannot be written ({})", std::strerror(errno));
}

// Output must have arrived: a full disk behind `>` is a failure of the command.
void flush_output() {
  std::cout.flush();
  if (!std::cout || std::fflush(stdout) != 0 || std::ferror(stdout) != 0) fail_output();
}

int run(int argc, char** argv) {
  essh::verbs::Verb app("essh", "essh: train one language model, export any capacity of it, run it anywhere");
  app.version(fmt::format("essh {}", ESSH_VERSION));
  app.require_subcommand(1);
  app.fallthrough();
  app.add_flag_callback(
      "-q,--quiet", [] { essh::log::set_level(essh::log::Level::Quiet); },
      "only errors and warnings on standard error");
  app.add_flag_callback(
      "-v,--verbose", [] { essh::log::set_level(essh::log::Level::Verbose); }, "more detail on standard error");
  essh::verbs::add_all(app);
  try {
    app.run(argc, argv);
  } catch (const std::system_error&) {
    if (std::ferror(stdout) != 0) fail_output();  // thrown by fmt::print
    throw;
  }
  flush_output();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  essh::install_signal_handlers();
  occupy_standard_streams();
  essh::comm::RankGuard ranks;
  try {
    return ranks.leave(run(argc, argv));
  } catch (const essh::Error& error) {
    fmt::print(stderr, "essh: {}\n", error.what());
    return ranks.leave(essh::exit_code(error.kind()));
  } catch (const std::filesystem::filesystem_error& error) {
    fmt::print(stderr, "essh: {}: {}\n", error.path1().string(), error.code().message());
    return ranks.leave(essh::exit_code(essh::ErrorKind::BadFile));
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "essh: out of memory\n");
    return ranks.leave(essh::exit_code(essh::ErrorKind::OutOfMemory));
  } catch (const std::exception& error) {
    fmt::print(stderr, "essh: internal error: {}\n", error.what());
    return ranks.leave(essh::exit_code(essh::ErrorKind::Internal));
  }
}
