#pragma once
#include <span>
#include <vector>

#include "essh/model/tensors.h"

namespace essh {

// Orders the units of every feed-forward by importance, falling: running squared activation times the squared norm of
// the unit's column of the down projection. Everything that belongs to a unit moves with it: its rows of gate and up,
// its column of down, in the weights and in each of `companions` (optimizer moments, same layout), and its running
// activation in `squares` (layers x units). The function at full capacity does not change.
void order_units(const ParameterLayout& layout, std::span<float> weights, std::span<const std::span<float>> companions,
                 Matrix<double> squares);

}  // namespace essh
