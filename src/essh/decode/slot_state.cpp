#include "essh/decode/slot_state.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <utility>

#include "essh/kernels/clear.h"
#include "essh/kernels/copy.h"

namespace essh {
namespace {

constexpr Index kPartAlignment = 256;
constexpr Index kFewestSlotRows = 256;
// A strided copy on CUDA takes a stride below 2 GiB.
constexpr Index kMostStride = Index{1} << 30;

Index aligned(Index bytes) {
  return (bytes + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
}

// Different for every memory and copy that a state has had, in this process.
std::uint64_t next_version() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

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
  const StatePart* before = nullptr;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const auto& part = parts_[i];
    if (part.kind != StatePart::Kind::Rows) continue;
    grows_ = grows_ || part.window == 0;
    if (before && before->window == part.window && row_bytes(*before) == row_bytes(part))
      ++groups_.back().count;
    else
      groups_.push_back({i, 1});
    before = &part;
  }
  take_rows(0);
  clear();
}

void SlotState::take_rows(Index room) {
  const Index before = std::exchange(capacity_, room);
  std::vector<Index> offsets;
  Index size = 0;
  for (const auto& part : parts_) {
    offsets.push_back(size);
    if (part.kind == StatePart::Kind::Rows) size += cache_stride(part);
  }
  try {
    rows_ = Array<std::byte>(stream_.device(), size, "caches of sequences");
  } catch (...) {
    capacity_ = before;
    throw;
  }
  row_offsets_ = std::move(offsets);
  version_ = next_version();
}

void SlotState::copy_rows(const SlotState& from) {
  for (const auto& group : groups_) {
    const auto& part = parts_[group.part];
    copy_group(group, place(group.part, 0), cache_stride(part), from.place(group.part, 0), from.cache_stride(part),
               row_bytes(part) * from.filled_rows(part));
  }
}

Index SlotState::cache_stride(const StatePart& part) const {
  return aligned(row_bytes(part) * cache_rows(part));
}

void SlotState::copy_group(const Group& group, std::byte* to, Index to_stride, const std::byte* from, Index from_stride,
                           Index bytes) const {
  if (bytes == 0) return;
  constexpr Index kWord = sizeof(float);
  const bool strided = bytes % kWord == 0 && to_stride % kWord == 0 && from_stride % kWord == 0 &&
                       std::max(to_stride, from_stride) < kMostStride;
  if (!strided) {
    for (Index i = 0; i < group.count; ++i)
      stream_.copy(to + i * to_stride, from + i * from_stride, static_cast<std::size_t>(bytes));
    return;
  }
  launch(stream_,
         Copy<float>{.from = {reinterpret_cast<const float*>(from), group.count, bytes / kWord, from_stride / kWord},
                     .to = {reinterpret_cast<float*>(to), group.count, bytes / kWord, to_stride / kWord}});
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
  const Index wanted = position_ + tokens;
  if (!grows_ || wanted <= capacity_) return;
  const Index room = static_cast<Index>(std::bit_ceil(static_cast<std::uint64_t>(std::max(wanted, kFewestSlotRows))));
  if (position_ == 0) return take_rows(room);
  SlotState larger(capacity, parts_, fixed_offsets_, 0, rewind_, stream_);
  larger.take_rows(room);
  larger.copy_rows(*this);
  stream_.wait();  // the old cache may still be read
  std::swap(rows_, larger.rows_);
  std::swap(row_offsets_, larger.row_offsets_);
  capacity_ = room;
  version_ = larger.version_;
}

void SlotState::advance(Index tokens) {
  position_ += tokens;
  if (rewind_ == 0) {
    history_.front() = {position_, copy_};
    return;
  }
  copy_ = copy_after(1);
  version_ = next_version();
  history_.push_back({position_, copy_});
  while (std::ssize(history_) > copies() || history_.front().position < position_ - rewind_) history_.pop_front();
}

void SlotState::clear() {
  if (std::exchange(followed_, nullptr)) take_rows(0);
  version_ = next_version();
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
  version_ = next_version();
}

bool SlotState::can_rewind_to(Index position) const {
  return position == 0 || std::ranges::any_of(history_, [&](const Kept& kept) { return kept.position == position; });
}

void SlotState::copy_from(const SlotState& other) {
  if (std::exchange(followed_, nullptr) || capacity_ != other.cache_capacity()) take_rows(other.cache_capacity());
  position_ = other.position_;
  copy_ = other.copy_;
  version_ = next_version();
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

std::size_t SlotState::packed_bytes(Index position) const {
  Index size = aligned(fixed_bytes_);
  for (const auto& group : groups_)
    size += group.count * row_bytes(parts_[group.part]) * kept_rows(parts_[group.part], position);
  return static_cast<std::size_t>(size);
}

template <class Body>
void SlotState::each_packed(Index position, const Body& body) const {
  Index begin = aligned(fixed_bytes_);
  for (const auto& group : groups_) {
    const auto& part = parts_[group.part];
    const Index rows = kept_rows(part, position);
    each_run(part, position - rows, position, [&](Index row, Index at, Index run) {
      body(group, begin + at * row_bytes(part), rows * row_bytes(part), place(group.part, 0) + row * row_bytes(part),
           run * row_bytes(part));
    });
    begin += group.count * rows * row_bytes(part);
  }
}

void SlotState::pack(std::byte* to) const {
  copy_group({0, 1}, to, fixed_bytes_, entering_parts(), fixed_bytes_, fixed_bytes_);
  each_packed(position_, [&](const Group& group, Index begin, Index stride, const std::byte* cache, Index bytes) {
    copy_group(group, to + begin, stride, cache, cache_stride(parts_[group.part]), bytes);
  });
}

void SlotState::unpack(const std::byte* from, Index position) {
  clear();
  reserve(position);
  copy_group({0, 1}, entering_parts(), fixed_bytes_, from, fixed_bytes_, fixed_bytes_);
  each_packed(position, [&](const Group& group, Index begin, Index stride, std::byte* cache, Index bytes) {
    copy_group(group, cache, cache_stride(parts_[group.part]), from + begin, stride, bytes);
  });
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
