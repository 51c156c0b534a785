#include "essh/evaluate/markov.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace essh {
namespace {

std::uint64_t contexts(int order) {
  return std::uint64_t{1} << (2 * order);
}

}  // namespace

MarkovChain::MarkovChain(int order) {
  for (int k = 0; k <= order; ++k) counts_.emplace_back(contexts(k));
}

void MarkovChain::Past::add(std::int8_t base, int order) {
  if (base == kOther) {
    *this = {};
    return;
  }
  code = ((code << 2) | static_cast<std::uint64_t>(base)) & (contexts(order) - 1);
  known = std::min(known + 1, order);
}

void MarkovChain::learn(std::span<const std::int8_t> bases) {
  for (const auto base : bases) {
    if (base != kOther) {
      for (int k = 0; k <= past_.known; ++k)
        ++counts_[static_cast<std::size_t>(k)][past_.code & (contexts(k) - 1)][static_cast<std::size_t>(base)];
    }
    past_.add(base, order());
  }
}

std::vector<double> MarkovChain::bits(std::span<const std::int8_t> bases) const {
  std::vector<double> found(bases.size());
  Past past;
  for (std::size_t i = 0; i < bases.size(); ++i) {
    if (bases[i] != kOther) {
      const auto& counts = counts_[static_cast<std::size_t>(past.known)][past.code];
      const auto all = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
      const auto here = counts[static_cast<std::size_t>(bases[i])];
      found[i] = std::log2(static_cast<double>(all + kBases) / static_cast<double>(here + 1));
    }
    past.add(bases[i], order());
  }
  return found;
}

}  // namespace essh
