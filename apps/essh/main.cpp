#include <fmt/format.h>

#include <exception>
#include <filesystem>
#include <new>

#include "apps/essh/verbs.h"
#include "essh/base/error.h"
#include "essh/base/log.h"
#include "essh/base/signals.h"
#include "essh/comm/group.h"

namespace {

int run(int argc, char** argv) {
  CLI::App app{"essh: train one language model, export any capacity of it, run it anywhere", "essh"};
  app.set_version_flag("--version", fmt::format("essh {}", ESSH_VERSION));
  app.require_subcommand(1);
  app.fallthrough();
  app.add_flag_callback(
      "-q,--quiet", [] { essh::log::set_level(essh::log::Level::Quiet); },
      "only errors and warnings on standard error");
  app.add_flag_callback(
      "-v,--verbose", [] { essh::log::set_level(essh::log::Level::Verbose); }, "more detail on standard error");
  essh::verbs::add_all(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : essh::exit_code(essh::ErrorKind::Usage);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  essh::install_signal_handlers();
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
