#pragma once
#include <vector>

#include "essh/kernels/reference/dual.h"

namespace essh::reference {

template <class S>
struct Attended {
  std::vector<std::vector<S>> out;  // [query][column]
  std::vector<S> log_sum;           // [query]
};

// One query head of one sequence and its kv head, from the definition: query j is at position past + j and sees the
// last `window` keys up to it.
template <class S>
Attended<S> window_attention(const std::vector<std::vector<S>>& q, const std::vector<std::vector<S>>& k,
                             const std::vector<std::vector<S>>& v, std::size_t past, std::size_t window) {
  using std::exp, std::log;
  Attended<S> result;
  for (std::size_t j = 0; j < q.size(); ++j) {
    const std::size_t dim = q[j].size(), end = past + j + 1, begin = end > window ? end - window : 0;
    std::vector<S> weight(end, S(0)), out(dim, S(0));
    S total = 0;
    for (std::size_t r = begin; r < end; ++r) {
      S score = 0;
      for (std::size_t i = 0; i < dim; ++i) score += q[j][i] * k[r][i];
      weight[r] = exp(score / S(std::sqrt(static_cast<double>(dim))));
      total += weight[r];
    }
    for (std::size_t r = begin; r < end; ++r) {
      for (std::size_t i = 0; i < dim; ++i) out[i] += weight[r] / total * v[r][i];
    }
    result.out.push_back(out);
    result.log_sum.push_back(log(total));
  }
  return result;
}

}  // namespace essh::reference
