#pragma once
#include <algorithm>
#include <bit>
#include <map>
#include <memory>
#include <vector>

#include "essh/decode/slot_state.h"
#include "essh/decode/tier_model.h"

namespace essh {

// Fills steps up to one of a few numbers of sequences, multiples of 8 or of an eighth of a power of two. Each number is
// recorded as a CUDA graph by itself, and a server's batch changes with nearly every step. The padding is one sequence
// that nobody reads: it is at its first token again and again.
template <class T>
class StepPadding {
 public:
  static constexpr Index kExact = 8;  // few sequences run as they are

  // The number that a step of `count` sequences is filled up to.
  static Index padded(Index count) {
    const auto unit = std::max(kExact, static_cast<Index>(std::bit_ceil(static_cast<std::uint64_t>(count))) / 8);
    return count <= kExact ? count : (count + unit - 1) / unit * unit;
  }

  void pad(TierModel<T>& model, std::vector<SlotState*>& states, Stream& stream) {
    const auto count = static_cast<Index>(states.size());
    if (padded(count) == count) return;
    auto& filler = fillers_[&model];
    if (!filler) {
      filler = std::make_unique<SlotState>(model.capacity(), model.parts(), model.fixed_offsets(), model.fixed_bytes(),
                                           0, stream);
      filler->reserve(1);
    }
    states.resize(static_cast<std::size_t>(padded(count)), filler.get());
  }

 private:
  std::map<const TierModel<T>*, std::unique_ptr<SlotState>> fillers_;
};

}  // namespace essh
