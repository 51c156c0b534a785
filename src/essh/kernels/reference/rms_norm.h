#pragma once
#include <vector>

#include "essh/kernels/reference/dual.h"

namespace essh::reference {

// y = gain * x / sqrt(mean(x^2) + eps) over one row.
template <class S>
std::vector<S> rms_norm(const std::vector<S>& x, const std::vector<S>& gain, double eps) {
  using std::sqrt;
  S squares = 0;
  for (const S& value : x) squares += value * value;
  const S rms = sqrt(squares / S(static_cast<double>(x.size())) + S(eps));
  std::vector<S> y;
  for (std::size_t c = 0; c < x.size(); ++c) y.push_back(gain[c] * x[c] / rms);
  return y;
}

}  // namespace essh::reference
