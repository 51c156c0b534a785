#include "tests/fuzz/driver.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <exception>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "essh/base/error.h"

namespace essh::fuzz {
namespace {

// A message without names and numbers: faults of one class have the same text.
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

struct Options {
  std::uint64_t iterations = 50000, seed = 1;
  double max_megabytes = 1024, max_seconds = 10;
  bool show_classes = false;
  std::vector<std::pair<std::string, std::uint64_t>> chosen;  // fuzzers and their inputs
};

constexpr const char* kUsage =
    "usage: fuzz [OPTION]... NAME[=N]...\n"
    "Sends N mutated inputs to each fuzzer named, one fuzzer after the other. Fails on an exception that is no Error "
    "or\n"
    "is of kind Internal, on a slow input, and on much memory. Prints one line of figures for each.\n"
    "  --iterations N   inputs of a fuzzer without a number of its own\n"
    "  --seed N         the same seed makes the same inputs\n"
    "  --max-mb X       peak memory above this fails\n"
    "  --max-seconds X  one input that takes more processor time fails\n"
    "  --classes        print the classes of errors met\n";

using Make = std::function<OneInput(std::uint64_t seed)>;

// A function's static, because other sources register before main().
std::map<std::string, Make, std::less<>>& fuzzers() {
  static std::map<std::string, Make, std::less<>> all;
  return all;
}

// Without CLI11, which takes 20 s to compile.
bool parse(int argc, char** argv, Options& options) {
  const auto number = [](std::string_view text, auto& value) {
    const auto* const end = text.data() + text.size();
    const auto result = std::from_chars(text.data(), end, value);
    return result.ec == std::errc() && result.ptr == end;
  };
  std::vector<std::string_view> names;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--classes") {
      options.show_classes = true;
      continue;
    }
    if (!name.starts_with("-")) {
      names.push_back(name);
      continue;
    }
    if (++i == argc) return false;
    const std::string_view value = argv[i];
    const bool known = name == "--iterations"    ? number(value, options.iterations)
                       : name == "--seed"        ? number(value, options.seed)
                       : name == "--max-mb"      ? number(value, options.max_megabytes)
                       : name == "--max-seconds" ? number(value, options.max_seconds)
                                                 : false;
    if (!known) return false;
  }
  for (const auto name : names) {
    const auto equals = name.find('=');
    auto inputs = options.iterations;
    if (equals != std::string_view::npos && !number(name.substr(equals + 1), inputs)) return false;
    if (!fuzzers().contains(name.substr(0, equals))) return false;
    options.chosen.emplace_back(name.substr(0, equals), inputs);
  }
  return !names.empty();
}

// The limit of 10 s for one input is 25 times the slowest known: hypervisors that share a core count theirs too.
bool run(const std::string& name, std::uint64_t iterations, const Options& options) {
  const OneInput once = fuzzers().at(name)(options.seed);
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
      if (classes.insert(error_class(error.what())).second && options.show_classes) fmt::print("{}\n", error.what());
      if (error.kind() == ErrorKind::Internal) failure = error.what();
    } catch (const std::exception& error) {
      failure = fmt::format("an exception that is no Error: {}", error.what());
    }
    const double now = thread_seconds();
    slowest = std::max(slowest, now - last);
    last = now;
    if (slowest > options.max_seconds) failure = fmt::format("one input took {:.1f} s of processor time", slowest);
    if (i % 1024 == 0 && peak_megabytes() > options.max_megabytes) failure = "memory over the limit";
  }
  if (failure.empty() && peak_megabytes() > options.max_megabytes) failure = "memory over the limit";
  fmt::print(
      "fuzz {}: seed {}, {} inputs, {} accepted, {} rejected, {} error classes, {:.1f} s, slowest {:.1f} ms, peak "
      "{:.0f} MB\n",
      name, options.seed, i, accepted, rejected, classes.size(), last - start, 1e3 * slowest, peak_megabytes());
  if (!failure.empty()) fmt::print("fuzz {}: FAILED at input {}: {}\n", name, i, failure);
  std::fflush(stdout);
  return failure.empty();
}

}  // namespace

void add_fuzzer(const char* name, Make make) {
  fuzzers().emplace(name, std::move(make));
}

}  // namespace essh::fuzz

int main(int argc, char** argv) {
  essh::fuzz::Options options;
  if (!essh::fuzz::parse(argc, argv, options)) {
    fmt::print(stderr, "{}fuzzers:", essh::fuzz::kUsage);
    for (const auto& [name, make] : essh::fuzz::fuzzers()) fmt::print(stderr, " {}", name);
    fmt::print(stderr, "\n");
    return 2;
  }
  for (const auto& [name, inputs] : options.chosen)
    if (!essh::fuzz::run(name, inputs, options)) return 1;
  return 0;
}
