#pragma once
#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace essh {

// Philox4x32-10: block `counter` of the stream named by `key` is a pure function of both, so a position in a stream is
// one number and streams of different keys are independent. Kernels call it too.
constexpr std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t first = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t second = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(second >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(second),
               static_cast<std::uint32_t>(first >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(first)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

// Block `index` of the stream that Rng(seed, stream) reads.
constexpr std::array<std::uint32_t, 4> random_block(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  return philox({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                 static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)},
                {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
}
// What next64() of that Rng returns at `position`.
constexpr std::uint64_t random_bits(std::uint64_t seed, std::uint64_t stream, std::uint64_t position) {
  const std::uint64_t high = random_block(seed, stream, position / 4)[position % 4];
  return (high << 32) | random_block(seed, stream, (position + 1) / 4)[(position + 1) % 4];
}

// A sequential reader of one Philox stream. State is (seed, stream, position): trivially saved and restored.
class Rng {
 public:
  explicit Rng(std::uint64_t seed, std::uint64_t stream = 0) : seed_(seed), stream_(stream) {}

  std::uint32_t next() {
    if (position_ % 4 == 0 || !filled_) refill();
    return block_[position_++ % 4];
  }
  std::uint64_t next64() {
    const std::uint64_t high = next();
    return (high << 32) | next();
  }
  // Uniform in [0, 1), 53 bits.
  double uniform() { return static_cast<double>(next64() >> 11) * 0x1p-53; }
  // Uniform in [0, n), without bias. n > 0.
  std::uint64_t below(std::uint64_t n) {
    const std::uint64_t limit = n * (UINT64_MAX / n);
    std::uint64_t draw;
    do draw = next64();
    while (draw >= limit);
    return draw % n;
  }
  // Standard normal (Box-Muller), from kNormalWords positions of the stream.
  static constexpr std::uint64_t kNormalWords = 4;
  double normal() {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
    return radius * std::cos(2.0 * std::numbers::pi * uniform());
  }

  std::uint64_t position() const { return position_; }
  void seek(std::uint64_t position) {
    position_ = position;
    filled_ = false;
  }

 private:
  void refill();

  std::uint64_t seed_;
  std::uint64_t stream_;
  std::uint64_t position_ = 0;
  bool filled_ = false;
  std::array<std::uint32_t, 4> block_{};
};

}  // namespace essh
