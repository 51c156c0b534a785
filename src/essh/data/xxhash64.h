#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace essh {

// XXH64 with seed 0, of bytes given piece by piece: finds damage and sorts documents; no defence against an adversary.
class XxHash64 {
 public:
  void update(std::span<const std::byte> bytes);
  // The hash of what was given so far; more may follow.
  std::uint64_t digest() const;

 private:
  static constexpr std::size_t kStripe = 32;
  std::array<std::uint64_t, 4> lanes_ = {0x60EA27EEADC0B5D6u, 0xC2B2AE3D27D4EB4Fu, 0, 0x61C8864E7A143579u};
  std::array<std::byte, kStripe> rest_{};
  std::size_t rest_size_ = 0;
  std::uint64_t total_ = 0;
};

std::uint64_t xxhash64(std::span<const std::byte> bytes);
std::uint64_t xxhash64(std::string_view text);

}  // namespace essh
