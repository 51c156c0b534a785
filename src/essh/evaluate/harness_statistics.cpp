#include "essh/evaluate/harness_statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "essh/base/thread_pool.h"

namespace essh {
namespace {

constexpr int kChunk = 1000;  // resamples of one seed

double deviation_of(std::span<const double> values) {
  const double mean = mean_of(values);
  // Squares are stored first: a fused multiply-add rounds differently from Python.
  std::vector<double> squares;
  for (const double value : values) squares.push_back((value - mean) * (value - mean));
  double sum = 0;
  for (const double square : squares) sum += square;
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

}  // namespace

double mean_of(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

double standard_error(std::span<const double> values) {
  if (values.size() < 2) return std::numeric_limits<double>::quiet_NaN();
  return deviation_of(values) / std::sqrt(static_cast<double>(values.size()));
}

double perplexity_of(std::span<const double> log_likelihoods) {
  return std::exp(-mean_of(log_likelihoods));
}

std::vector<double> perplexity_errors(std::span<const std::vector<double>> log_likelihoods, int iterations,
                                      int threads) {
  const auto series = log_likelihoods.size();
  const auto count = series == 0 ? 0 : log_likelihoods.front().size();
  const int chunk = std::min(kChunk, iterations), chunks = iterations < 1 ? 0 : iterations / chunk;
  if (count == 0 || chunks * chunk < 2) return std::vector<double>(series, std::numeric_limits<double>::quiet_NaN());
  const auto resamples = static_cast<std::size_t>(chunks * chunk);
  std::vector<std::vector<double>> values(series, std::vector<double>(resamples));
  ThreadPool pool(threads);
  pool.each(chunks, [&](std::int64_t c, int) {
    PythonRandom random(static_cast<std::uint32_t>(c));
    std::vector<std::size_t> drawn(count);
    for (int i = 0; i < chunk; ++i) {
      for (auto& index : drawn) index = static_cast<std::size_t>(random.random() * static_cast<double>(count));
      for (std::size_t s = 0; s < series; ++s) {
        double sum = 0;
        for (const auto index : drawn) sum += log_likelihoods[s][index];
        values[s][static_cast<std::size_t>(c * chunk + i)] = std::exp(-(sum / static_cast<double>(count)));
      }
    }
  });
  std::vector<double> errors;
  for (const auto& one : values) errors.push_back(deviation_of(one));
  return errors;
}

// Matsumoto and Nishimura's init_by_array() for a key of one word, as Python seeds with small integers.
PythonRandom::PythonRandom(std::uint32_t seed) {
  state_[0] = 19650218u;
  const auto mixed = [&](std::uint32_t i) { return state_[i - 1] ^ (state_[i - 1] >> 30); };
  for (std::uint32_t i = 1; i < 624; ++i) state_[i] = 1812433253u * mixed(i) + i;
  std::uint32_t i = 1;
  const auto advance = [&] {
    if (++i < 624) return;
    state_[0] = state_[623];
    i = 1;
  };
  for (int k = 0; k < 624; ++k) {
    state_[i] = (state_[i] ^ (mixed(i) * 1664525u)) + seed;
    advance();
  }
  for (int k = 0; k < 623; ++k) {
    state_[i] = (state_[i] ^ (mixed(i) * 1566083941u)) - i;
    advance();
  }
  state_[0] = 0x80000000u;
}

void PythonRandom::twist() {
  for (int i = 0; i < 624; ++i) {
    const std::uint32_t y = (state_[i] & 0x80000000u) | (state_[(i + 1) % 624] & 0x7fffffffu);
    state_[i] = state_[(i + 397) % 624] ^ (y >> 1) ^ ((y & 1) != 0 ? 0x9908b0dfu : 0u);
  }
  index_ = 0;
}

std::uint32_t PythonRandom::next() {
  if (index_ == 624) twist();
  std::uint32_t y = state_[index_++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680u;
  y ^= (y << 15) & 0xefc60000u;
  return y ^ (y >> 18);
}

double PythonRandom::random() {
  const std::uint32_t high = next() >> 5, low = next() >> 6;
  return (static_cast<double>(high) * 67108864.0 + static_cast<double>(low)) * (1.0 / 9007199254740992.0);
}

}  // namespace essh
