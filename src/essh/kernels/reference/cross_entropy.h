#pragma once
#include <vector>

#include "essh/kernels/reference/dual.h"

namespace essh::reference {

// log sum exp(logits) - logits[target], shifted by the target's logit: log sum exp(logits - logits[target]).
template <class S>
S cross_entropy(const std::vector<S>& logits, std::size_t target) {
  using std::exp, std::log;
  S total = 0;
  for (const S& logit : logits) total += exp(logit - logits[target]);
  return log(total);
}

}  // namespace essh::reference
