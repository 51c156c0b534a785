#include "essh/data/synthetic_task.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "essh/base/error.h"
#include "essh/base/rng.h"
#include "essh/base/spelling.h"
#include "essh/base/utf8.h"

namespace essh {
namespace {

constexpr std::int32_t kFiller = 0;
constexpr std::int64_t kMostSymbols = 1 << 24;
// Separates these streams from others drawn with the same seed.
constexpr std::uint64_t kSeedTag = 0x7a5c5eedull << 32;

bool is_mqar(const TaskOptions& o) {
  return o.name == "mqar";
}

// Symbols in one half of a palindrome.
std::int64_t half(const TaskOptions& o) {
  return (o.length - 1) / 2;
}

// `count` distinct numbers of [first, first + range) in random order, all orders equally likely.
std::vector<std::int32_t> draw_distinct(Rng& rng, std::int64_t first, std::int64_t range, std::int64_t count) {
  std::vector<std::int32_t> pool(static_cast<std::size_t>(range));
  std::iota(pool.begin(), pool.end(), static_cast<std::int32_t>(first));
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i)
    std::swap(pool[i], pool[i + rng.below(pool.size() - i)]);
  pool.resize(static_cast<std::size_t>(count));
  return pool;
}

// A weighted draw of slots without replacement: exponential waiting times with the weights as rates finish in exactly
// this distribution of orders.
std::vector<std::int64_t> draw_slots(Rng& rng, std::int64_t slots, double power, std::int64_t count) {
  std::vector<std::pair<double, std::int64_t>> waits(static_cast<std::size_t>(slots));
  for (std::int64_t g = 0; g < slots; ++g) {
    const double weight = std::pow(static_cast<double>(g + 1), power - 1);
    waits[static_cast<std::size_t>(g)] = {-std::log(1 - rng.uniform()) / weight, g};
  }
  std::partial_sort(waits.begin(), waits.begin() + count, waits.end());
  std::vector<std::int64_t> order;
  for (std::int64_t i = 0; i < count; ++i) order.push_back(waits[static_cast<std::size_t>(i)].second);
  return order;
}

void mqar(const TaskOptions& o, Rng& rng, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) {
  const auto keys = draw_distinct(rng, 1, o.symbols / 2 - 1, o.pairs);
  const auto values = draw_distinct(rng, o.symbols / 2, o.symbols - o.symbols / 2, o.pairs);
  const auto context = 2 * o.pairs;
  const auto slots = draw_slots(rng, (o.length - context) / 2, o.query_power, o.pairs);
  std::fill(inputs.begin(), inputs.end(), kFiller);
  std::fill(targets.begin(), targets.end(), kUnlabelled);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    inputs[2 * i] = keys[i];
    inputs[2 * i + 1] = values[i];
    const auto query = static_cast<std::size_t>(context + 2 * slots[i]);
    inputs[query] = keys[i];
    targets[query] = values[i];
  }
  if (!o.noise) return;
  for (auto& input : inputs) {
    if (input == kFiller) input = static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(o.symbols)));
  }
}

void palindrome(const TaskOptions& o, Rng& rng, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) {
  const auto symbols = static_cast<std::int32_t>(o.symbols);
  const std::int32_t begin = symbols, separator = symbols + 1;
  const auto n = static_cast<std::size_t>(half(o));
  std::fill(targets.begin(), targets.end(), kUnlabelled);
  inputs[0] = begin;
  inputs[n + 1] = separator;
  for (std::size_t i = 0; i < n; ++i) {
    const auto symbol = static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(symbols)));
    inputs[1 + i] = symbol;
    // With an odd length the last mirror is one past the end and serves as a target only.
    const auto mirror = 2 * n + 1 - i;
    if (mirror < inputs.size()) inputs[mirror] = symbol;
    targets[mirror - 1] = symbol;
  }
}

}  // namespace

SyntheticTask::SyntheticTask(const TaskOptions& options) : options_(options) {
  auto& o = options_;
  const std::vector<std::string> names = {"mqar", "palindrome"};
  if (std::find(names.begin(), names.end(), o.name) == names.end()) {
    fail(ErrorKind::Usage, "no task is called {}{} (there are {})", in_quotes(o.name), suggestion(o.name, names),
         fmt::join(names, ", "));
  }
  if (o.symbols == 0) o.symbols = is_mqar(o) ? 8192 : 64;
  if (o.symbols < 1 || o.symbols > kMostSymbols)
    fail(ErrorKind::Usage, "{}: symbols must be between 1 and {}, got {}", o.name, kMostSymbols, o.symbols);
  if (is_mqar(o)) {
    if (o.pairs < 1) fail(ErrorKind::Usage, "mqar: pairs must be at least 1, got {}", o.pairs);
    if (o.length % 2 != 0 || o.pairs > o.length / 4)
      fail(ErrorKind::Usage, "mqar: {} pairs need an even length of at least {}, got {}", o.pairs, 4 * o.pairs,
           o.length);
    if (o.pairs > o.symbols / 2 - 1)
      fail(ErrorKind::Usage, "mqar: {} pairs need at least {} symbols, got {}", o.pairs, 2 * (o.pairs + 1), o.symbols);
  } else if (o.length < 3) {
    fail(ErrorKind::Usage, "palindrome: length must be at least 3, got {}", o.length);
  }
}

std::int64_t SyntheticTask::vocab_size() const {
  return is_mqar(options_) ? options_.symbols : options_.symbols + 2;
}

std::int64_t SyntheticTask::labels() const {
  return is_mqar(options_) ? options_.pairs : half(options_);
}

double SyntheticTask::chance() const {
  const auto answers = is_mqar(options_) ? options_.symbols - options_.symbols / 2 : options_.symbols;
  return 1.0 / static_cast<double>(answers);
}

std::string SyntheticTask::fingerprint() const {
  const auto& o = options_;
  auto text = fmt::format("{} length {} symbols {}", o.name, o.length, o.symbols);
  if (is_mqar(o)) text += fmt::format(" pairs {} query_power {} noise {}", o.pairs, o.query_power, o.noise);
  return text;
}

void SyntheticTask::sample(Split split, std::uint64_t seed, std::int64_t index, std::span<std::int32_t> inputs,
                           std::span<std::int32_t> targets) const {
  ESSH_ASSERT(index >= 0 && std::ssize(inputs) == options_.length && std::ssize(targets) == options_.length);
  Rng rng(seed ^ kSeedTag, 2 * static_cast<std::uint64_t>(index) + (split == Split::Validation ? 1 : 0));
  if (is_mqar(options_))
    mqar(options_, rng, inputs, targets);
  else
    palindrome(options_, rng, inputs, targets);
}

}  // namespace essh
