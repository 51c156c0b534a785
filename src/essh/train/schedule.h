#pragma once
#include "essh/train/recipe.h"

namespace essh {

// Learning rate of step `step` (from 0) of `steps`: a linear rise, then
//   cosine: half a cosine from the peak to floor * peak;  wsd: the peak, then linear to the floor over the last share;
//   constant: the peak.
double learning_rate(const OptimizerRecipe& recipe, Index step, Index steps);

}  // namespace essh
