#pragma once
#include "essh/decode/engine.h"
#include "essh/decode/slot_state.h"

namespace essh {

// Most rows of one pass. A slot's pieces do not depend on it.
inline constexpr Index kPassRows = 8192;

// An engine without its number type: Engine::Typed in engine.cpp fills it in.
class Engine::Impl {
 public:
  Impl(StoredModel model, Stream& stream, EngineOptions options)
      : model_(std::move(model)), stream_(stream), options_(options), arena_(stream.device()) {
    if (options_.piece <= 0) options_.piece = stream.device() == Device::Cpu ? 512 : kPassRows;
  }
  virtual ~Impl() = default;

  virtual Slot open(const Tier& tier, SlotOptions options) = 0;
  virtual Slot fork(Slot slot) = 0;
  virtual void run(std::span<const Chunk> chunks, Outputs& outputs, const std::function<void()>& meanwhile) = 0;
  virtual void prepare(const Tier& tier, Index slots, Index prompt) = 0;
  virtual std::vector<std::int32_t> generate(std::span<const Slot> slots, std::span<const std::int32_t> first,
                                             Index steps) = 0;
  virtual StateSnapshot snapshot(Slot slot) const = 0;
  virtual Slot restore(const Tier& tier, const StateSnapshot& snapshot, SlotOptions options) = 0;
  virtual Slot unpack(const Tier& tier, const PackedState& packed, SlotOptions options) = 0;
  virtual void close(Slot slot) = 0;
  virtual SlotState& state(Slot slot) const = 0;
  virtual const Tier& tier(Slot slot) const = 0;
  virtual std::size_t weight_bytes(const Tier& tier) = 0;
  virtual StepWeights step_weights(const Tier& tier, Index slots) = 0;

  const StoredModel& model() const { return model_; }
  Stream& stream() const { return stream_; }
  Precision precision() const { return precision_on(stream_.device(), options_.precision); }

  void rewind(Slot slot, Index tokens) {
    auto& known = state(slot);
    const Index target = known.position() - tokens;
    if (tokens < 0 || target < 0 || !known.can_rewind_to(target)) {
      fail(ErrorKind::Usage, "a slot at position {} that keeps {} tokens cannot be rolled back by {}", known.position(),
           known.rewindable(), tokens);
    }
    known.rewind_to(target);
  }

 protected:
  StoredModel model_;
  Stream& stream_;
  EngineOptions options_;
  Arena arena_;
};

}  // namespace essh
