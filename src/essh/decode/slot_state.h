#pragma once
#include <deque>
#include <vector>

#include "essh/decode/engine.h"
#include "essh/model/mixer.h"

namespace essh {

// The memory of one slot and where it stands. Fixed parts have one copy, or one more than the tokens that can be taken
// back: a step reads one and writes the next, so taking back costs nothing. Caches of rows are rings, or grow.
class SlotState {
 public:
  SlotState(Capacity capacity, const std::vector<StatePart>& parts, const std::vector<Index>& fixed_offsets,
            Index fixed_bytes, Index rewind, Stream& stream);

  const Capacity capacity;

  Index position() const { return position_; }
  // Tokens that can be taken back.
  Index rewindable() const { return rewind_; }
  std::size_t bytes() const { return fixed_.bytes() + rows_.bytes(); }

  // Makes room for a piece of `tokens` more; caches that grow may move.
  void reserve(Index tokens);
  // Where a part is read, and written by the next piece.
  std::byte* entering(std::size_t part) const { return place(part, copy_); }
  std::byte* leaving(std::size_t part) const { return place(part, next_copy()); }
  // The memory itself: all fixed parts as read and written, caches, and rows of those that grow.
  std::byte* entering_parts() const { return fixed_.data() + copy_ * fixed_bytes_; }
  std::byte* leaving_parts() const { return fixed_.data() + next_copy() * fixed_bytes_; }
  std::byte* caches() const { return rows_.data(); }
  Index cache_capacity() const { return capacity_; }
  // The piece has been launched.
  void advance(std::span<const std::int32_t> tokens);
  // Says which tokens the last ones were, when that was not known yet.
  void name_last(std::span<const std::int32_t> tokens);

  void clear();
  bool can_rewind_to(Index position) const;
  // Goes back to the last state kept at or before `position` and returns the tokens from there to it.
  std::vector<std::int32_t> rewind_to(Index position);

  void copy_from(const SlotState& other);
  std::vector<std::vector<std::byte>> download() const;
  // Parts have the sizes of snapshot_sizes().
  void upload(const std::vector<std::vector<std::byte>>& parts, Index position);
  // Bytes of each part of a snapshot.
  static std::vector<std::size_t> snapshot_sizes(const std::vector<StatePart>& parts, Index position);

 private:
  struct Kept {
    Index position, copy;
  };
  Index copies() const { return rewind_ + 1; }
  Index next_copy() const { return (copy_ + 1) % copies(); }
  std::byte* place(std::size_t part, Index copy) const;
  // Rows of a part's cache: of its ring, or room for now.
  Index cache_rows(const StatePart& part) const { return part.window > 0 ? part.window + kSpareRows : capacity_; }
  Index row_bytes(const StatePart& part) const { return stored_bytes(part.format, part.columns); }
  Index filled_rows(const StatePart& part) const { return std::min(position_, cache_rows(part)); }
  // Rows of a part that a snapshot holds.
  static Index kept_rows(const StatePart& part, Index position);
  // Calls body(row in the cache, position - begin, rows) for positions [begin, end) in order.
  template <class Body>
  void each_run(const StatePart& part, Index begin, Index end, const Body& body) const;
  void take_rows(Index room);
  void copy_rows(const SlotState& from);

  const std::vector<StatePart>& parts_;
  const std::vector<Index>& fixed_offsets_;
  Index fixed_bytes_, rewind_;
  Stream& stream_;
  Array<std::byte> fixed_, rows_;
  std::vector<Index> row_offsets_;
  Index capacity_ = 0;  // rows of caches that grow
  Index copy_ = 0;
  Index position_ = 0;
  std::deque<Kept> history_;          // states that can be gone back to, oldest first; the last is the present one
  std::vector<std::int32_t> recent_;  // tokens since history_.front()
};

}  // namespace essh
