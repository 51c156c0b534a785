#pragma once
#include <algorithm>
#include <vector>

#include "essh/decode/slot_state.h"

namespace essh {

// What the kernels of a pass read besides weights: pointers to the states of its sequences, their positions and
// capacities, and the tokens. One array, so that one copy brings it to a device.
struct PassInputs {
  std::vector<std::byte> bytes;
  Index count = 0, rows = 0;  // sequences and tokens
  // Where each kind begins; pointers into entering states at 0.
  std::size_t leaving = 0, positions = 0, channels = 0, units = 0, tokens = 0;
  bool mixed = false;  // some sequence has a smaller capacity than the pass
  bool coded_windows = false, narrow_states = false;
  std::uint64_t pointers = 0;  // changes with the pointers

  // All but the tokens. steps: how many tokens of this pass each sequence's slot has taken before; empty for none.
  void write(Capacity capacity, std::size_t parts, std::span<SlotState* const> states, Index row_count,
             std::span<const Index> steps = {}) {
    const auto size = states.size();
    count = static_cast<Index>(size);
    rows = row_count;
    leaving = parts * size * sizeof(std::byte*);
    positions = 2 * leaving;
    channels = positions + size * sizeof(Index);
    units = channels + size * sizeof(std::int32_t);
    tokens = units + size * sizeof(std::int32_t);
    bytes.resize(tokens + static_cast<std::size_t>(rows) * sizeof(std::int32_t));
    mixed = false;
    // Pointers are most of the work: those of the step before serve again while its states stay where they are.
    const bool known = steps.empty() && std::ranges::equal(states, versions_, {}, &SlotState::version) &&
                       std::ranges::find(versions_, 0u) == versions_.end();
    if (!known) {
      versions_.clear();
      ++pointers;
      for (const auto* state : states) versions_.push_back(steps.empty() ? state->version() : 0);
    }
    for (std::size_t b = 0; b < size; ++b) {
      const auto& state = *states[b];
      const Index step = steps.empty() ? 0 : steps[b];
      for (std::size_t part = 0; part < parts && !known; ++part) {
        at<std::byte*>(0)[part * size + b] = state.entering(part, step);
        at<std::byte*>(leaving)[part * size + b] = state.leaving(part, step);
      }
      at<Index>(positions)[b] = state.position() + step;
      at<std::int32_t>(channels)[b] = static_cast<std::int32_t>(state.capacity.channels);
      at<std::int32_t>(units)[b] = static_cast<std::int32_t>(state.capacity.ffn);
      mixed = mixed || state.capacity != capacity;
    }
  }

  template <class V>
  V* at(std::size_t begin) {
    return reinterpret_cast<V*>(bytes.data() + begin);
  }
  // As kernels see them, `device` being where the bytes lie for these.
  Vector<const std::int32_t> tokens_at(const std::byte* device) const {
    return {reinterpret_cast<const std::int32_t*>(device + tokens), rows};
  }
  SequenceBatch batch_at(const std::byte* device, std::span<const Segment> segments, Index longest) const {
    SequenceBatch batch{.segments = segments,
                        .count = count,
                        .positions = mirrored<Index>(device, positions),
                        .entering = mirrored<std::byte*>(device, 0),
                        .leaving = mirrored<std::byte*>(device, leaving),
                        .longest = longest,
                        .coded_windows = coded_windows,
                        .narrow_states = narrow_states};
    if (mixed) {
      batch.channels = mirrored<std::int32_t>(device, channels);
      batch.units = mirrored<std::int32_t>(device, units);
    }
    return batch;
  }

 private:
  std::vector<std::uint64_t> versions_;  // of the states whose pointers `bytes` holds

  template <class V>
  Mirrored<V> mirrored(const std::byte* device, std::size_t begin) const {
    return {reinterpret_cast<const V*>(bytes.data() + begin), reinterpret_cast<const V*>(device + begin)};
  }
};

}  // namespace essh
