#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace essh {

// A Markov chain over the four bases, the baseline of DNA models: p(b | last `order` bases) =
// (count of b after them + 1) / (count of all + 4). With fewer known bases, the chain of that lower order is used.
class MarkovChain {
 public:
  static constexpr int kBases = 4;
  static constexpr std::int8_t kOther = -1;  // no base; the past is empty after it

  explicit MarkovChain(int order);

  int order() const { return static_cast<int>(counts_.size()) - 1; }
  // Adds the bases of a text to the counts of all orders. A text continues the previous one.
  void learn(std::span<const std::int8_t> bases);
  // Bits of every base, 0 for kOther. The text starts with an empty past.
  std::vector<double> bits(std::span<const std::int8_t> bases) const;

 private:
  struct Past {
    std::uint64_t code = 0;  // the last bases, two bits each
    int known = 0;
    void add(std::int8_t base, int order);
  };

  std::vector<std::vector<std::array<std::uint64_t, kBases>>> counts_;  // by order and past
  Past past_;
};

}  // namespace essh
