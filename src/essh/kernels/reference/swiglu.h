#pragma once
#include "essh/kernels/reference/dual.h"

namespace essh::reference {

template <class S>
S swiglu(S gate, S up) {
  return silu(gate) * up;
}

}  // namespace essh::reference
