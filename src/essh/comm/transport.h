#pragma once
#include <cstddef>
#include <span>

namespace essh::comm {

struct Outgoing {
  int to;
  std::span<const std::byte> bytes;
};
struct Incoming {
  int from;
  std::span<std::byte> bytes;
};

// Point-to-point messages between ranks, on which the collectives are built.
class Transport {
 public:
  static constexpr std::size_t kLargestMessage = std::size_t{1} << 30;

  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Returns when all messages have arrived and all outgoing buffers may be reused. The messages that one rank sends to
  // another must match, in order and size, those the other expects. Empty messages are skipped on both sides.
  virtual void exchange(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming) = 0;
};

}  // namespace essh::comm
