#include <numeric>

#include "essh/decode/engine_impl.h"

namespace essh {

std::size_t StateSnapshot::bytes() const {
  return std::accumulate(parts.begin(), parts.end(), std::size_t{0},
                         [](std::size_t sum, const auto& part) { return sum + part.size(); });
}

const StoredModel& Engine::model() const {
  return impl_->model();
}
Stream& Engine::stream() const {
  return impl_->stream();
}
Slot Engine::open(const Tier& tier, SlotOptions options) {
  const auto lock = stream().acquire();
  return impl_->open(tier, options);
}
Slot Engine::fork(Slot slot) {
  const auto lock = stream().acquire();
  return impl_->fork(slot);
}
void Engine::close(Slot slot) {
  const auto lock = stream().acquire();
  impl_->close(slot);
}
void Engine::reset(Slot slot) {
  const auto lock = stream().acquire();
  impl_->state(slot).clear();
}
void Engine::rewind(Slot slot, Index tokens) {
  const auto lock = stream().acquire();
  impl_->rewind(slot, tokens);
}
void Engine::follow(Slot slot, Slot larger) {
  const auto lock = stream().acquire();
  impl_->state(slot).follow(impl_->state(larger));
}
Index Engine::position(Slot slot) const {
  const auto lock = stream().acquire();
  return impl_->state(slot).position();
}
const Tier& Engine::tier(Slot slot) const {
  const auto lock = stream().acquire();
  return impl_->tier(slot);
}
void Engine::run(std::span<const Chunk> chunks, Outputs& outputs, const std::function<void()>& meanwhile) {
  const auto lock = stream().acquire();
  impl_->run(chunks, outputs, meanwhile);
}
void Engine::prepare(const Tier& tier, Index slots, Index prompt) {
  const auto lock = stream().acquire();
  impl_->prepare(tier, slots, prompt);
}
std::vector<std::int32_t> Engine::generate(std::span<const Slot> slots, std::span<const std::int32_t> first,
                                           Index steps) {
  const auto lock = stream().acquire();
  return impl_->generate(slots, first, steps);
}
StateSnapshot Engine::snapshot(Slot slot) const {
  const auto lock = stream().acquire();
  return impl_->snapshot(slot);
}
Slot Engine::restore(const Tier& tier, const StateSnapshot& snapshot, SlotOptions options) {
  const auto lock = stream().acquire();
  return impl_->restore(tier, snapshot, options);
}
std::size_t Engine::packed_bytes(Slot slot) const {
  const auto lock = stream().acquire();
  return impl_->state(slot).packed_bytes();
}
PackedState Engine::pack(Slot slot, std::byte* to) const {
  const auto lock = stream().acquire();
  const auto& state = impl_->state(slot);
  state.pack(to);
  return {.capacity = state.capacity, .position = state.position(), .data = to};
}
Slot Engine::unpack(const Tier& tier, const PackedState& packed, SlotOptions options) {
  const auto lock = stream().acquire();
  return impl_->unpack(tier, packed, options);
}
std::size_t Engine::state_bytes(Slot slot) const {
  const auto lock = stream().acquire();
  return impl_->state(slot).bytes();
}
std::size_t Engine::weight_bytes(const Tier& tier) {
  const auto lock = stream().acquire();
  return impl_->weight_bytes(tier);
}
StepWeights Engine::step_weights(const Tier& tier, Index slots) {
  const auto lock = stream().acquire();
  return impl_->step_weights(tier, slots);
}
Precision Engine::precision() const {
  return impl_->precision();
}

}  // namespace essh
