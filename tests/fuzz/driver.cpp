#include "tests/fuzz/driver.h"

#include <sys/resource.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <set>
#include <string>

#include "essh/base/error.h"

namespace essh::fuzz {
namespace {

// A message without its names and numbers: two faults of one class look the same.
std::string error_class(std::string_view message) {
  std::string name;
  bool in_quotes = false;
  for (const char c : message) {
    if (c == '"') in_quotes = !in_quotes;
    if (in_quotes) continue;
    const bool digit = c >= '0' && c <= '9';
    if (!digit) {
      name += c;
    } else if (!name.ends_with('#')) {
      name += '#';
    }
  }
  return name;
}

double thread_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double peak_megabytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024.0;
}

}  // namespace

int run_inputs(int argc, char** argv, const char* name, const std::function<OneInput(std::uint64_t seed)>& make) {
  std::uint64_t iterations = 50000, seed = 1;
  double max_megabytes = 1024, max_seconds = 10;
  bool show_classes = false;
  CLI::App app{"deterministic mutation fuzzer"};
  app.add_option("--iterations", iterations, "inputs to try");
  app.add_option("--seed", seed, "the same seed makes the same inputs");
  app.add_option("--max-mb", max_megabytes, "peak memory above this fails");
  app.add_option("--max-seconds", max_seconds, "one input that takes more processor time fails");
  app.add_flag("--classes", show_classes, "print the classes of errors met");
  CLI11_PARSE(app, argc, argv);

  const OneInput once = make(seed);
  std::set<std::string> classes;
  std::uint64_t accepted = 0, rejected = 0, i = 0;
  const double start = thread_seconds();
  double slowest = 0, last = start;
  std::string failure;
  for (; i < iterations && failure.empty(); ++i) {
    try {
      once();
      ++accepted;
    } catch (const Error& error) {
      ++rejected;
      if (classes.insert(error_class(error.what())).second && show_classes) fmt::print("{}\n", error.what());
      if (error.kind() == ErrorKind::Internal) failure = error.what();
    } catch (const std::exception& error) {
      failure = fmt::format("an exception that is no Error: {}", error.what());
    }
    const double now = thread_seconds();
    slowest = std::max(slowest, now - last);
    last = now;
    if (slowest > max_seconds) failure = fmt::format("one input took {:.1f} s of processor time", slowest);
    if (i % 1024 == 0 && peak_megabytes() > max_megabytes) failure = "memory over the limit";
  }
  if (failure.empty() && peak_megabytes() > max_megabytes) failure = "memory over the limit";
  fmt::print(
      "{}: seed {}, {} inputs, {} accepted, {} rejected, {} error classes, {:.1f} s, slowest {:.1f} ms, peak {:.0f} "
      "MB\n",
      name, seed, i, accepted, rejected, classes.size(), last - start, 1e3 * slowest, peak_megabytes());
  if (failure.empty()) return 0;
  fmt::print("{}: FAILED at input {}: {}\n", name, i, failure);
  return 1;
}

}  // namespace essh::fuzz
