#include "essh/data/xxhash64.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace essh {
namespace {

static_assert(std::endian::native == std::endian::little, "shards and their checksums are little-endian");

constexpr std::uint64_t kPrime1 = 0x9E3779B185EBCA87u;
constexpr std::uint64_t kPrime2 = 0xC2B2AE3D27D4EB4Fu;
constexpr std::uint64_t kPrime3 = 0x165667B19E3779F9u;
constexpr std::uint64_t kPrime4 = 0x85EBCA77C2B2AE63u;
constexpr std::uint64_t kPrime5 = 0x27D4EB2F165667C5u;

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

std::uint64_t mix(std::uint64_t lane, std::uint64_t word) {
  return std::rotl(lane + word * kPrime2, 31) * kPrime1;
}

void mix_stripe(std::array<std::uint64_t, 4>& lanes, const std::byte* stripe) {
  for (std::size_t i = 0; i < 4; ++i) lanes[i] = mix(lanes[i], load<std::uint64_t>(stripe + 8 * i));
}

}  // namespace

void XxHash64::update(std::span<const std::byte> bytes) {
  total_ += bytes.size();
  if (rest_size_ > 0) {
    const auto take = std::min(bytes.size(), kStripe - rest_size_);
    std::copy_n(bytes.begin(), take, rest_.begin() + static_cast<std::ptrdiff_t>(rest_size_));
    rest_size_ += take;
    bytes = bytes.subspan(take);
    if (rest_size_ < kStripe) return;
    mix_stripe(lanes_, rest_.data());
    rest_size_ = 0;
  }
  auto lanes = lanes_;
  for (; bytes.size() >= kStripe; bytes = bytes.subspan(kStripe)) mix_stripe(lanes, bytes.data());
  lanes_ = lanes;
  std::copy(bytes.begin(), bytes.end(), rest_.begin());
  rest_size_ = bytes.size();
}

std::uint64_t XxHash64::digest() const {
  std::uint64_t hash = kPrime5;
  if (total_ >= kStripe) {
    hash = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) + std::rotl(lanes_[3], 18);
    for (const auto lane : lanes_) hash = (hash ^ mix(0, lane)) * kPrime1 + kPrime4;
  }
  hash += total_;
  const std::byte* at = rest_.data();
  const std::byte* end = at + rest_size_;
  for (; end - at >= 8; at += 8) hash = std::rotl(hash ^ mix(0, load<std::uint64_t>(at)), 27) * kPrime1 + kPrime4;
  for (; end - at >= 4; at += 4) hash = std::rotl(hash ^ load<std::uint32_t>(at) * kPrime1, 23) * kPrime2 + kPrime3;
  for (; at != end; ++at) hash = std::rotl(hash ^ static_cast<std::uint64_t>(*at) * kPrime5, 11) * kPrime1;
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

std::uint64_t xxhash64(std::span<const std::byte> bytes) {
  XxHash64 hash;
  hash.update(bytes);
  return hash.digest();
}

std::uint64_t xxhash64(std::string_view text) {
  return xxhash64(std::as_bytes(std::span(text)));
}

}  // namespace essh
