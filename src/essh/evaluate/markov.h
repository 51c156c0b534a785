#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace essh {

// A Markov chain over the four bases, the baseline of DNA models: p(b | the last `order` bases) =
// (count of b after them + 1) / (count of all + 4). Where fewer bases are known, the chain of that lower order answers.
class MarkovChain {
 public:
  static constexpr int kBases = 4;
  static constexpr std::int8_t kOther = -1;  // no base: what comes after it has no past

  explicit MarkovChain(int order);

  int order() const { return static_cast<int>(counts_.size()) - 1; }
  // Counts every base of a text after the bases before it, in all orders. Texts go on where the last one ended.
  void learn(std::span<const std::int8_t> bases);
  // Bits of every base, 0 for others. The text starts from nothing.
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
