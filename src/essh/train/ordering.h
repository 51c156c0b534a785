#pragma once
#include <span>
#include <vector>

#include "essh/device/stream.h"
#include "essh/model/tensors.h"
#include "essh/train/shards.h"

namespace essh {

// For each layer, the permutation of its feed-forward units.
using UnitOrder = std::vector<std::vector<std::int32_t>>;

// Sorts by falling importance: running squared activation (`squares`, layers x units, in host memory) times the squared
// norm of the unit's column of the down projection. Stable.
UnitOrder importance_order(Stream& stream, Arena& arena, const ParameterLayout& layout, Vector<const float> weights,
                           Matrix<const double> squares);

// Permutes the units in an array of the layout on the device (weights, optimizer states): rows of gate and up, columns
// of down. The function at full capacity does not change. Uses scratch for one tensor in the arena.
void order_units(Stream& stream, Arena& arena, const ParameterLayout& layout, const UnitOrder& order,
                 Vector<float> values);
// The same for a sharded array; a collective.
void order_units(Stream& stream, Arena& arena, const ParameterLayout& layout, const UnitOrder& order, Shards& shards,
                 Vector<float> shares);
// The same for values per unit, layers x units, in host memory.
void order_units(const UnitOrder& order, Matrix<double> values);

}  // namespace essh
