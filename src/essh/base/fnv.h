#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace essh {

// FNV-1a, 64 bits: of bytes, and of further bytes given the hash so far. Not for data that may be hostile (sha256.h).
inline constexpr std::uint64_t kFnvStart = 0xcbf29ce484222325u;
constexpr std::uint64_t fnv1a(std::span<const std::byte> bytes, std::uint64_t hash = kFnvStart) {
  for (const auto byte : bytes) hash = (hash ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3u;
  return hash;
}
constexpr std::uint64_t fnv1a(std::string_view text, std::uint64_t hash = kFnvStart) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace essh
