#pragma once
#include <string>

#include "essh/tensor/matrix.h"

namespace essh {

// Learning rate of the steps of a stage: a linear rise over the share `warmup` of them, then
//   cosine: half a cosine from the peak to floor * peak;  constant: the peak;
//   wsd: the peak, then linear to floor * peak over the last `decay_share` of the steps.
struct Schedule {
  double peak = 0;
  std::string shape = "cosine";
  double warmup = 0, floor = 0, decay_share = 0;
  Index steps = 1;

  double rate(Index step) const;  // from 0
};

}  // namespace essh
