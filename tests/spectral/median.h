#pragma once
#include <algorithm>
#include <vector>

namespace essh {

inline double median(std::vector<double> values) {
  std::ranges::sort(values);
  const auto half = values.size() / 2;
  return values.size() % 2 ? values[half] : 0.5 * (values[half - 1] + values[half]);
}

}  // namespace essh
