#pragma once
#include "essh/kernels/reference/dual.h"

namespace essh::reference {

// Write and read gate.
template <class S>
S gate(S logit, S bias) {
  return S(2) * sigmoid(logit + bias);
}

template <class S>
S clock(S logit, S bias) {
  return softplus(logit + bias);
}

}  // namespace essh::reference
