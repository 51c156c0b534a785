#pragma once
#include <deque>
#include <utility>
#include <vector>

#include "essh/decode/engine.h"

namespace essh {

// The open slots of an engine. A lookup is an index: a pass over hundreds of slots makes thousands of lookups. Entries
// keep their addresses.
template <class Entry>
class SlotTable {
 public:
  Slot add(Entry entry) {
    if (free_.empty()) {
      ESSH_ASSERT(std::ssize(places_) < kMost);
      free_.push_back(places_.size());
      places_.emplace_back();
    }
    const auto index = free_.back();
    free_.pop_back();
    // The number of slots opened so far makes every id unique.
    const auto id = ++opened_ * kMost + static_cast<std::int64_t>(index);
    places_[index] = {id, std::move(entry)};
    return {id};
  }

  Entry& at(Slot slot) {
    const auto index = index_of(slot);
    if (slot.id < 0 || index >= places_.size() || places_[index].id != slot.id)
      fail(ErrorKind::Internal, "slot {} is not open", slot.id);
    return places_[index].entry;
  }

  void erase(Slot slot) {
    at(slot) = {};
    places_[index_of(slot)].id = -1;
    free_.push_back(index_of(slot));
  }

 private:
  static constexpr std::int64_t kMost = std::int64_t{1} << 24;
  static std::size_t index_of(Slot slot) { return static_cast<std::size_t>(slot.id & (kMost - 1)); }

  struct Place {
    std::int64_t id = -1;
    Entry entry = {};
  };
  std::deque<Place> places_;
  std::vector<std::size_t> free_;
  std::int64_t opened_ = 0;
};

}  // namespace essh
