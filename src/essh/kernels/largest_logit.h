#pragma once
#include <bit>

#include "essh/device/stream.h"

namespace essh {

// A key orders logits: the largest belongs to the largest logit, and to the first of equal ones. 0 is the key of none,
// and of a logit that is not a number.
using LogitKey = unsigned long long;
constexpr LogitKey logit_key(float logit, std::int32_t token) {
  if (logit != logit) return 0;
  const auto bits = std::bit_cast<std::uint32_t>(logit);
  const std::uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return static_cast<LogitKey>(ordered) << 32 | (0xffffffffu - static_cast<std::uint32_t>(token));
}
constexpr std::int32_t token_of_key(LogitKey key) {
  return static_cast<std::int32_t>(0xffffffffu - static_cast<std::uint32_t>(key));
}

// keys[r] becomes the key of the largest logit of row r.
struct LargestLogit {
  Matrix<const float> logits;
  Vector<LogitKey> keys;  // (max=)
};

// The tokens of keys, which become 0.
struct DrawnTokens {
  Vector<LogitKey> keys;        // (in, out)
  Vector<std::int32_t> tokens;  // (=)
};

void run(cpu::Stream&, const LargestLogit&);
void run(cuda::Stream&, const LargestLogit&);
void run(cpu::Stream&, const DrawnTokens&);
void run(cuda::Stream&, const DrawnTokens&);

}  // namespace essh
