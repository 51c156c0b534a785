#pragma once
#include <cstdint>
#include <optional>
#include <span>

#include "essh/data/dataset.h"
#include "essh/data/sample_order.h"

namespace essh {

// Target of a position without prediction.
inline constexpr std::int32_t kUnlabelled = -1;

// Training sequences of equal length; a sequence is a pure function of its index in an infinite stream.
class Sequences {
 public:
  virtual ~Sequences() = default;

  virtual std::int64_t length() const = 0;
  // Positions of each sequence that have a target.
  virtual std::int64_t labels() const = 0;
  // Sequence `index` >= 0: the input of each of length() positions and its target, or kUnlabelled. Safe from several
  // threads.
  virtual void read(std::int64_t index, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const = 0;
};

// Windows of a text; the target of a position is the next token.
class TextSequences : public Sequences {
 public:
  // With a seed, every epoch is shuffled; without, windows come in order and repeat. Keeps a reference to `stream`,
  // which must hold at least one window.
  TextSequences(const TokenStream& stream, std::int64_t context, std::optional<std::uint64_t> seed);

  std::int64_t length() const override { return context_; }
  std::int64_t labels() const override { return context_; }
  void read(std::int64_t index, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const override;
  // Windows of an epoch.
  std::int64_t windows() const { return windows_; }

 private:
  const TokenStream& stream_;
  std::int64_t context_;
  std::int64_t windows_;
  std::optional<SampleOrder> order_;
};

}  // namespace essh
