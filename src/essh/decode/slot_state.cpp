#include "essh/decode/slot_state.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "essh/kernels/clear.h"

namespace essh {
namespace {

constexpr Index kAlignment = 256;
constexpr Index kFewestRows = 256;

}  // namespace

SlotState::SlotState(Capacity of, const std::vector<StatePart>& parts, const std::vector<Index>& fixed_offsets,
                     Index fixed_bytes, Index rewind, Stream& stream)
    : capacity(of),
      parts_(parts),
      fixed_offsets_(fixed_offsets),
      fixed_bytes_(fixed_bytes),
      rewind_(rewind),
      stream_(stream),
      fixed_(stream.device(), fixed_bytes * copies(), "states of sequences") {
  take_rows(0);
  clear();
}

void SlotState::take_rows(Index room) {
  capacity_ = room;
  row_offsets_.clear();
  Index size = 0;
  for (const auto& part : parts_) {
    row_offsets_.push_back(size);
    if (part.kind == StatePart::Kind::Rows)
      size += (row_bytes(part) * cache_rows(part) + kAlignment - 1) / kAlignment * kAlignment;
  }
  rows_ = Array<std::byte>(stream_.device(), size, "caches of sequences");
}

void SlotState::copy_rows(const SlotState& from) {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].kind == StatePart::Kind::Rows)
      stream_.copy(place(i, 0), from.place(i, 0),
                   static_cast<std::size_t>(row_bytes(parts_[i]) * from.filled_rows(parts_[i])));
  }
}

std::byte* SlotState::place(std::size_t part, Index copy) const {
  if (parts_[part].kind == StatePart::Kind::Rows) return caches() + owner().row_offsets_[part];
  return fixed_.data() + copy * fixed_bytes_ + fixed_offsets_[part];
}

void SlotState::reserve(Index tokens) {
  if (followed_) {
    ESSH_ASSERT(position_ + tokens <= followed_->position_ + kSpareRows);
    return;
  }
  const bool grows = std::ranges::any_of(
      parts_, [](const StatePart& part) { return part.kind == StatePart::Kind::Rows && part.window == 0; });
  const Index wanted = position_ + tokens;
  if (!grows || wanted <= capacity_) return;
  const Index room = static_cast<Index>(std::bit_ceil(static_cast<std::uint64_t>(std::max(wanted, kFewestRows))));
  if (position_ == 0) return take_rows(room);
  SlotState larger(capacity, parts_, fixed_offsets_, 0, rewind_, stream_);
  larger.take_rows(room);
  larger.copy_rows(*this);
  stream_.wait();  // the old cache may still be read
  std::swap(rows_, larger.rows_);
  std::swap(row_offsets_, larger.row_offsets_);
  capacity_ = room;
}

void SlotState::advance(Index tokens) {
  copy_ = copy_after(1);
  position_ += tokens;
  history_.push_back({position_, copy_});
  while (std::ssize(history_) > copies() || history_.front().position < position_ - rewind_) history_.pop_front();
}

void SlotState::clear() {
  if (std::exchange(followed_, nullptr)) take_rows(0);
  copy_ = position_ = 0;
  history_ = {{0, 0}};
  if (fixed_bytes_ > 0)
    essh::clear(stream_, Vector<float>{reinterpret_cast<float*>(fixed_.data()), fixed_bytes_ / Index{sizeof(float)}});
}

void SlotState::rewind_to(Index position) {
  ESSH_ASSERT(can_rewind_to(position));
  if (position == 0) return clear();
  while (history_.back().position > position) history_.pop_back();
  position_ = history_.back().position;
  copy_ = history_.back().copy;
}

bool SlotState::can_rewind_to(Index position) const {
  return position == 0 || std::ranges::any_of(history_, [&](const Kept& kept) { return kept.position == position; });
}

void SlotState::copy_from(const SlotState& other) {
  take_rows(other.cache_capacity());
  position_ = other.position_;
  copy_ = other.copy_;
  history_ = other.history_;
  stream_.copy(fixed_.data(), other.fixed_.data(), fixed_.bytes());
  copy_rows(other);
}

void SlotState::follow(SlotState& larger) {
  ESSH_ASSERT(!larger.followed_ && capacity.channels <= larger.capacity.channels);
  // A cache that grew later would lose the rows of this slot.
  larger.reserve(kSpareRows + 1);
  rows_ = {};
  followed_ = &larger;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].kind == StatePart::Kind::Fixed)
      stream_.copy(entering(i), larger.entering(i), static_cast<std::size_t>(row_bytes(parts_[i])));
  }
  position_ = larger.position_;
  history_ = {{position_, copy_}};
}

Index SlotState::kept_rows(const StatePart& part, Index position) {
  return part.window > 0 ? std::min(position, part.window) : position;
}

template <class Body>
void SlotState::each_run(const StatePart& part, Index begin, Index end, const Body& body) const {
  const Index rows = cache_rows(part);
  for (Index p = begin; p < end;) {
    const Index row = part.window > 0 ? p % rows : p, run = std::min(end - p, rows - row);
    body(row, p - begin, run);
    p += run;
  }
}

std::vector<std::vector<std::byte>> SlotState::download() const {
  // Fixed parts lie together: one copy from the device.
  std::vector<std::byte> fixed(static_cast<std::size_t>(fixed_bytes_));
  stream_.copy(fixed.data(), entering_parts(), fixed.size());
  std::vector<std::vector<std::byte>> parts;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const auto& part = parts_[i];
    const Index bytes = row_bytes(part);
    if (part.kind == StatePart::Kind::Fixed) {
      const auto* from = fixed.data() + (entering(i) - entering_parts());
      parts.emplace_back(from, from + bytes);
      continue;
    }
    const Index rows = kept_rows(part, position_);
    auto& out = parts.emplace_back(static_cast<std::size_t>(bytes * rows));
    each_run(part, position_ - rows, position_, [&](Index row, Index at, Index run) {
      stream_.copy(out.data() + at * bytes, place(i, 0) + row * bytes, static_cast<std::size_t>(run * bytes));
    });
  }
  return parts;
}

void SlotState::upload(const std::vector<std::vector<std::byte>>& parts, Index position) {
  clear();
  reserve(position);
  std::vector<std::byte> fixed(static_cast<std::size_t>(fixed_bytes_));
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const auto& part = parts_[i];
    const Index bytes = row_bytes(part);
    if (part.kind == StatePart::Kind::Fixed) {
      std::ranges::copy(parts[i], fixed.begin() + (place(i, 0) - entering_parts()));
      continue;
    }
    each_run(part, position - kept_rows(part, position), position, [&](Index row, Index at, Index run) {
      stream_.copy(place(i, 0) + row * bytes, parts[i].data() + at * bytes, static_cast<std::size_t>(run * bytes));
    });
  }
  stream_.copy(entering_parts(), fixed.data(), fixed.size());
  position_ = position;
  history_ = {{position, 0}};
}

std::vector<std::size_t> SlotState::snapshot_sizes(const std::vector<StatePart>& parts, Index position) {
  std::vector<std::size_t> sizes;
  for (const auto& part : parts) {
    const Index rows = part.kind == StatePart::Kind::Fixed ? 1 : kept_rows(part, position);
    sizes.push_back(static_cast<std::size_t>(stored_bytes(part.format, part.columns) * rows));
  }
  return sizes;
}

}  // namespace essh
