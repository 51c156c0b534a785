#pragma once
#include <vector>

#include "essh/kernels/reference/dual.h"

namespace essh::reference {

// One head at one position: columns i and i + half rotate by position * theta^(-2i/size).
template <class S>
std::vector<S> rope(const std::vector<S>& head, double position, double theta) {
  const std::size_t half = head.size() / 2;
  std::vector<S> turned(head.size());
  for (std::size_t i = 0; i < half; ++i) {
    const double angle = position * std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head.size()));
    const S c = std::cos(angle), s = std::sin(angle);
    turned[i] = head[i] * c - head[i + half] * s;
    turned[i + half] = head[i + half] * c + head[i] * s;
  }
  return turned;
}

}  // namespace essh::reference
