#include "essh/comm/collectives.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "essh/base/error.h"

namespace essh::comm {
namespace {

constexpr std::size_t kBytesInFlight = std::size_t{4} << 20;
constexpr std::size_t kSmallestPiece = std::size_t{16} << 10;

// All ranks split their shards into pieces of this many bytes and process them in step.
std::size_t piece_bytes(int ranks) {
  return std::max(kSmallestPiece, kBytesInFlight / static_cast<std::size_t>(ranks) / alignof(std::max_align_t) *
                                      alignof(std::max_align_t));
}

std::size_t longest_part(Bounds bounds) {
  std::size_t longest = 0;
  for (std::size_t r = 0; r + 1 < bounds.size(); ++r) longest = std::max(longest, bounds[r + 1] - bounds[r]);
  return longest;
}

// The piece of shard `r` at `offset`; empty past its end.
template <class T>
std::span<T> piece_of(std::span<T> data, Bounds bounds, int r, std::size_t offset, std::size_t piece) {
  const std::size_t end = bounds[r + 1];
  const std::size_t begin = std::min(bounds[r] + offset, end);
  return data.subspan(begin, std::min(piece, end - begin));
}

// own = sum over r of parts[r], in that order; parts[rank] is `own` itself.
template <class T>
void add_in_order(std::span<T> own, std::span<const T* const> parts) {
  constexpr std::size_t kBlock = 1024;
  std::array<T, kBlock> sum;
  for (std::size_t begin = 0; begin < own.size(); begin += kBlock) {
    const std::size_t count = std::min(kBlock, own.size() - begin);
    std::copy_n(parts[0] + begin, count, sum.data());
    for (const T* const part : parts.subspan(1)) {
      for (std::size_t i = 0; i < count; ++i) sum[i] += part[begin + i];
    }
    std::copy_n(sum.data(), count, own.data() + begin);
  }
}

}  // namespace

void Collectives::check(Bounds bounds, std::size_t count) const {
  ESSH_ASSERT(bounds.size() == static_cast<std::size_t>(transport_.size()) + 1);
  ESSH_ASSERT(bounds.front() == 0 && bounds.back() == count && std::is_sorted(bounds.begin(), bounds.end()));
}

template <class T>
void Collectives::all_reduce_sum(std::span<T> data) {
  const std::vector<std::size_t> bounds = even_bounds(data.size(), transport_.size());
  reduce_scatter_sum(data, bounds);
  std::vector<std::size_t> byte_bounds = bounds;
  for (std::size_t& bound : byte_bounds) bound *= sizeof(T);
  all_gather(std::as_writable_bytes(data), byte_bounds);
}

template <class T>
void Collectives::reduce_scatter_sum(std::span<T> data, Bounds bounds) {
  check(bounds, data.size());
  const int ranks = transport_.size();
  const int rank = transport_.rank();
  const std::size_t piece = piece_bytes(ranks) / sizeof(T);
  const std::size_t longest = longest_part(bounds);
  const std::size_t own_longest = std::min(piece, bounds[rank + 1] - bounds[rank]);
  received_.resize(std::max(received_.size(), own_longest * sizeof(T) * static_cast<std::size_t>(ranks - 1)));
  std::vector<const T*> parts(static_cast<std::size_t>(ranks));
  for (std::size_t offset = 0; offset < longest; offset += piece) {
    const std::span<T> own = piece_of(data, bounds, rank, offset, piece);
    outgoing_.clear();
    incoming_.clear();
    std::byte* free = received_.data();
    for (int r = 0; r < ranks; ++r) {
      if (r == rank) {
        parts[r] = own.data();
        continue;
      }
      outgoing_.push_back({r, std::as_bytes(piece_of(data, bounds, r, offset, piece))});
      incoming_.push_back({r, {free, own.size_bytes()}});
      parts[r] = reinterpret_cast<const T*>(free);
      free += own.size_bytes();
    }
    transport_.exchange(outgoing_, incoming_);
    add_in_order<T>(own, parts);
  }
}

void Collectives::all_gather(std::span<float> data, Bounds bounds) {
  check(bounds, data.size());
  std::vector<std::size_t> byte_bounds(bounds.begin(), bounds.end());
  for (std::size_t& bound : byte_bounds) bound *= sizeof(float);
  all_gather(std::as_writable_bytes(data), byte_bounds);
}

void Collectives::all_gather(std::span<std::byte> data, Bounds bounds) {
  check(bounds, data.size());
  const int ranks = transport_.size();
  const int rank = transport_.rank();
  const std::size_t piece = piece_bytes(ranks);
  const std::size_t longest = longest_part(bounds);
  for (std::size_t offset = 0; offset < longest; offset += piece) {
    const std::span<std::byte> own = piece_of(data, bounds, rank, offset, piece);
    outgoing_.clear();
    incoming_.clear();
    for (int r = 0; r < ranks; ++r) {
      if (r == rank) continue;
      outgoing_.push_back({r, own});
      incoming_.push_back({r, piece_of(data, bounds, r, offset, piece)});
    }
    transport_.exchange(outgoing_, incoming_);
  }
}

template <class T>
std::vector<T> Collectives::gather_values(T value) {
  std::vector<T> values(static_cast<std::size_t>(transport_.size()));
  values[transport_.rank()] = value;
  std::vector<std::size_t> bounds(values.size() + 1);
  for (std::size_t r = 0; r < bounds.size(); ++r) bounds[r] = r * sizeof(T);
  all_gather(std::as_writable_bytes(std::span(values)), bounds);
  return values;
}

std::int64_t Collectives::all_reduce_sum(std::int64_t value) {
  std::int64_t sum = 0;
  for (const std::int64_t one : gather_values(value)) {
    if (__builtin_add_overflow(sum, one, &sum)) fail(ErrorKind::Internal, "sum over the ranks: more than 64 bits");
  }
  return sum;
}

double Collectives::all_reduce_max(double value) {
  double largest = -std::numeric_limits<double>::infinity();
  for (const double one : gather_values(value)) {
    if (std::isnan(one)) return one;
    largest = std::max(largest, one);
  }
  return largest;
}

void Collectives::broadcast(std::span<std::byte> data, int root) {
  const int ranks = transport_.size();
  const int rank = transport_.rank();
  ESSH_ASSERT(root >= 0 && root < ranks);
  // Every rank forwards one shard, so that the root sends little more than the data once.
  const std::vector<std::size_t> bounds = even_bounds(data.size(), ranks);
  const std::size_t piece = piece_bytes(ranks);
  const std::size_t longest = longest_part(bounds);
  for (std::size_t offset = 0; offset < longest; offset += piece) {
    outgoing_.clear();
    incoming_.clear();
    if (rank == root) {
      for (int r = 0; r < ranks; ++r) {
        if (r != root) outgoing_.push_back({r, piece_of(data, bounds, r, offset, piece)});
      }
    } else {
      incoming_.push_back({root, piece_of(data, bounds, rank, offset, piece)});
    }
    transport_.exchange(outgoing_, incoming_);
  }
  all_gather(data, bounds);
}

void Collectives::barrier() {
  gather_values(std::int64_t{0});
}

template void Collectives::all_reduce_sum<float>(std::span<float>);
template void Collectives::all_reduce_sum<double>(std::span<double>);
template void Collectives::reduce_scatter_sum<float>(std::span<float>, Bounds);
template void Collectives::reduce_scatter_sum<double>(std::span<double>, Bounds);

}  // namespace essh::comm
