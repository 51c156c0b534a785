#pragma once
#include <span>
#include <vector>

#include "essh/device/stream.h"
#include "essh/model/tensors.h"
#include "essh/train/shards.h"

namespace essh {

// For each layer, the units of its feed-forward in their new order.
using UnitOrder = std::vector<std::vector<std::int32_t>>;

// By importance, falling: running squared activation (`squares`, layers x units, in host memory) times the squared norm
// of the unit's column of the down projection. Equal ones keep their order.
UnitOrder importance_order(Stream& stream, Arena& arena, const ParameterLayout& layout, Vector<const float> weights,
                           Matrix<const double> squares);

// Moves everything that belongs to a unit to its new place, in an array of the layout on the device (weights, states of
// the optimizer): its rows of gate and up, its column of down. The function at full capacity does not change. The arena
// lends room for one tensor.
void order_units(Stream& stream, Arena& arena, const ParameterLayout& layout, const UnitOrder& order,
                 Vector<float> values);
// The same for an array of which every rank holds its shares; a collective.
void order_units(Stream& stream, Arena& arena, const ParameterLayout& layout, const UnitOrder& order, Shards& shards,
                 Vector<float> shares);
// The same for values per unit, layers x units, in host memory.
void order_units(const UnitOrder& order, Matrix<double> values);

}  // namespace essh
