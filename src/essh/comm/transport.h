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

// Moves bytes between ranks; what the collectives are made of.
class Transport {
 public:
  static constexpr std::size_t kLargestMessage = std::size_t{1} << 30;

  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Returns when everything has arrived and every outgoing buffer may be used again. What one rank sends to another
  // must match, message by message, what the other expects from it. Empty messages are skipped on both sides.
  virtual void exchange(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming) = 0;
};

}  // namespace essh::comm
