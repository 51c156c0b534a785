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
  // Tokens of a piece that keeps the state after each of them: all can be taken back but the first.
  Index steps() const { return copies(); }
  // Where a part is read, and written by the next piece; or by token `step` of a piece that keeps every state.
  std::byte* entering(std::size_t part, Index step = 0) const { return place(part, copy_after(step)); }
  std::byte* leaving(std::size_t part, Index step = 0) const { return place(part, copy_after(step + 1)); }
  // The memory itself: all fixed parts as read and written, caches, and rows of those that grow.
  std::byte* entering_parts() const { return fixed_.data() + copy_ * fixed_bytes_; }
  std::byte* leaving_parts() const { return fixed_.data() + copy_after(1) * fixed_bytes_; }
  std::byte* caches() const { return owner().rows_.data(); }
  Index cache_capacity() const { return owner().capacity_; }
  // A piece of `tokens` has been launched, whose last state alone is kept.
  void advance(Index tokens);

  void clear();
  bool can_rewind_to(Index position) const;
  void rewind_to(Index position);

  void copy_from(const SlotState& other);
  // Goes on from the state of a tier with as many channels or more: copies the leading ones, and uses its caches for up
  // to kSpareRows tokens behind it. It outlives this, or this is cleared before.
  void follow(SlotState& larger);
  std::vector<std::vector<std::byte>> download() const;
  // Parts have the sizes of snapshot_sizes().
  void upload(const std::vector<std::vector<std::byte>>& parts, Index position);
  // Bytes of each part of a snapshot.
  static std::vector<std::size_t> snapshot_sizes(const std::vector<StatePart>& parts, Index position);

  // The packed state: fixed parts once, then the rows of caches that a snapshot holds. Both memories are on the
  // stream's device; copies run in order with the kernels, and nothing waits for them.
  std::size_t packed_bytes() const { return packed_bytes(position_); }
  std::size_t packed_bytes(Index position) const;
  void pack(std::byte* to) const;
  void unpack(const std::byte* from, Index position);

  // Changes whenever the memory or the copy that the next piece reads and writes does. 0: cannot be told, since caches
  // are another's.
  std::uint64_t version() const { return followed_ ? 0 : version_; }

 private:
  struct Kept {
    Index position, copy;
  };
  Index copies() const { return rewind_ + 1; }
  const SlotState& owner() const { return followed_ ? *followed_ : *this; }
  Index copy_after(Index steps) const { return (copy_ + steps) % copies(); }
  std::byte* place(std::size_t part, Index copy) const;
  // Rows of a part's cache: of its ring, or room for now.
  Index cache_rows(const StatePart& part) const {
    return part.window > 0 ? part.window + kSpareRows : cache_capacity();
  }
  Index row_bytes(const StatePart& part) const { return stored_bytes(part.format, part.columns); }
  Index filled_rows(const StatePart& part) const { return std::min(position_, cache_rows(part)); }
  // Rows of a part that a snapshot holds.
  static Index kept_rows(const StatePart& part, Index position);
  // Calls body(row in the cache, position - begin, rows) for positions [begin, end) in order.
  template <class Body>
  void each_run(const StatePart& part, Index begin, Index end, const Body& body) const;
  void take_rows(Index room);
  void copy_rows(const SlotState& from);

  // Neighbouring caches of equal rows: one strided copy moves a range of rows of all of them.
  struct Group {
    std::size_t part;  // the first
    Index count;
  };
  void copy_group(const Group& group, std::byte* to, Index to_stride, const std::byte* from, Index from_stride,
                  Index bytes) const;
  // Bytes from one cache of a group to the next.
  Index cache_stride(const StatePart& part) const;
  // For every range of rows that is contiguous in the ring, calls body(group, offset in the packed state, packed bytes
  // of one cache, the range in the group's first cache, its bytes).
  template <class Body>
  void each_packed(Index position, const Body& body) const;

  const std::vector<StatePart>& parts_;
  const std::vector<Index>& fixed_offsets_;
  Index fixed_bytes_, rewind_;
  Stream& stream_;
  Array<std::byte> fixed_, rows_;
  std::vector<Index> row_offsets_;
  std::vector<Group> groups_;
  bool grows_ = false;  // some cache has no window
  std::uint64_t version_ = 0;
  Index capacity_ = 0;  // rows of caches that grow
  Index copy_ = 0;
  Index position_ = 0;
  SlotState* followed_ = nullptr;  // whose caches these are; null: its own
  std::deque<Kept> history_;       // states that can be gone back to, oldest first; the last is the present one
};

}  // namespace essh
