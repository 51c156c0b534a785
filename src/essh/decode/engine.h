#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "essh/decode/sampler.h"
#include "essh/device/stream.h"
#include "essh/model/capacity.h"
#include "essh/model/precision.h"
#include "essh/store/stored_model.h"

namespace essh {

// Bytes of a tier's bf16 weights from which on the fused step of a quantised model reads codes instead. Measured on an
// H200 at batch 1: 1.5b (3.06 GB) takes 0.70 to 0.77 ms with codes and 0.91 without, 370m (0.74 GB) 0.37 to 0.39 and
// 0.36, its T1 (0.18 GB) 0.28 and 0.26.
inline constexpr std::size_t kCodesFrom = 1'500'000'000;

struct EngineOptions {
  Precision precision = Precision::Auto;
  // A slot computes the same bits alone and among others, on a GPU too, where that costs speed. On the CPU it always
  // does.
  bool deterministic = false;
  // Single tokens of a few slots run as one kernel where the device can.
  bool fused = true;
  // Single tokens of several tiers run in one pass of the largest of them, where each sequence keeps to its own
  // channels and units, instead of in a pass for each tier. Rounding differs then, so a deterministic engine does not.
  bool mixed_tiers = false;
  // On a GPU, tokens of samplers are drawn there too, not from logits on the host. The most likely ones always are.
  bool sample_on_device = true;
  std::size_t codes_from = kCodesFrom;
  // Caches of sliding windows hold E4M3 codes with a scale per row and head (kernels/coded_rows.h): half the memory of
  // bf16, and faster steps of many sequences. Single tokens then run as recorded passes, not as one kernel.
  bool fp8_windows = false;
  // Recurrent states are stored in bf16: half the memory, and faster steps of many sequences. Single tokens then run as
  // recorded passes, not as one kernel.
  bool bf16_states = false;
  // No recorded launches, for measurements.
  bool eager = false;
  Index piece = 0;  // most tokens of a slot in one pass; 0: chosen for the device
};

// A sequence in an engine.
struct Slot {
  std::int64_t id = -1;
  bool operator==(const Slot&) const = default;
};

struct SlotOptions {
  Index rewind = 0;  // how many tokens can be taken back, up to kSpareRows; each costs a copy of fixed parts
};

// What a chunk wants: logits of its last position, of some or of all. Token: the next token alone, of the chunk's
// sampler or else the most likely one, drawn where the logits are if the engine can. Scores: losses of all positions
// against given targets. Dropped: logits of all positions, computed and thrown away, for measurements.
enum class Wanted { Nothing, Last, Token, All, Rows, Scores, Dropped };

// More tokens of a slot.
struct Chunk {
  Slot slot;
  std::span<const std::int32_t> tokens = {};  // at least one
  Wanted wanted = Wanted::Last;
  std::span<const Index> rows = {};            // Rows: positions within the chunk, rising
  std::span<const std::int32_t> targets = {};  // Scores: for each token the one to predict; kUnscored for none
  Sampler* sampler = nullptr;                  // Token: draws the next token and sees it
  // With a sampler: changes to logits before the draw, tokens rising, and how many of the most likely tokens are scored
  // beside the drawn one; -1: no log-probability is wanted.
  std::span<const LogitChange> changes = {};
  std::int32_t alternatives = -1;
  // Keeps the state after each token, which rewind() can go back to. Computes them as single tokens whose products are
  // taken together. At most SlotOptions::rewind + 1 tokens.
  bool keeps_states = false;
};
inline constexpr std::int32_t kUnscored = -1;

// What a pass found for each chunk, in their order. Reuse it from pass to pass to save its memory.
struct Outputs {
  struct Entry {
    Matrix<const float> logits;     // the rows wanted x vocabulary; Token: perhaps, of no meaning
    std::span<const float> losses;  // Scores: -log p of each target, 0 where there is none
    std::int32_t token = -1;        // Token: the one drawn; -1 if no logit is finite
    // Of a chunk with `alternatives`, before changes and temperature; the most likely tokens best first.
    float logprob = 0;
    std::vector<DrawnToken> top = {};
  };
  std::vector<Entry> entries;
  std::vector<float> storage;
};

// A slot's state in host memory: fixed parts whole, caches only as far as they are filled. Belongs to a model, capacity
// and precision; another engine of the same can restore it.
struct StateSnapshot {
  Capacity capacity;
  Index position = 0;
  Format rows = Format::F32;                       // of caches
  std::vector<std::vector<std::byte>> parts = {};  // in the order of model_state()

  std::size_t bytes() const;
};
// A slot's state packed into memory of the engine's device: what a snapshot holds, without leaving the device. The
// memory belongs to the caller.
struct PackedState {
  Capacity capacity;
  Index position = 0;
  const std::byte* data = nullptr;
};
// No sequence is longer. Bounds what a damaged state may claim: sizes of caches stay far from overflow.
inline constexpr Index kLongestSequence = Index{1} << 35;

// What a step of single tokens reads of the weights: their format where they lie, and their bytes.
struct StepWeights {
  std::string format;
  std::size_t bytes = 0;
};

// A model at work for many sequences, each a slot with its tier, position and state. Weights are packed once per tier;
// one pass takes any mix of prompts and single tokens of any slots. Calls may come from any thread, one at a time.
//
// Bits: what a slot computes depends on its tokens and how they were cut into chunks; with `deterministic`, and on the
// CPU always, on nothing else: not on other slots, threads, or the place in a ring. Cutting a text otherwise changes
// rounding only.
class Engine {
 public:
  // The stream outlives the engine.
  Engine(StoredModel model, Stream& stream, EngineOptions options = {});
  ~Engine();
  Engine(Engine&&) noexcept;

  const StoredModel& model() const;
  const ModelConfig& config() const { return model().config(); }
  Stream& stream() const;

  Slot open(const Tier& tier, SlotOptions options = {});
  // A second slot that goes on from the same state.
  Slot fork(Slot slot);
  void close(Slot slot);
  // The state before its first token.
  void reset(Slot slot);
  // Takes back the last tokens, without copies: at most as many as the slot was opened for. A chunk of several tokens
  // can be taken back in part only if it keeps its states.
  void rewind(Slot slot, Index tokens);
  // The slot goes on from the state of a slot whose tier has as many channels or more: from its leading channels, with
  // no caches of its own. It may be fed up to kSpareRows tokens, until that slot is fed or closed; then let it follow
  // again, reset or close it. What it computes is its tier's only approximately.
  void follow(Slot slot, Slot larger);
  Index position(Slot slot) const;
  const Tier& tier(Slot slot) const;

  // Advances each slot of `chunks`, all different, and returns what they want. After an error, reset or close the slots
  // of these chunks. `meanwhile` is called once unless an error comes first: on a GPU when the first pass with results
  // has been launched, on the CPU before the first pass. It must not call the engine.
  void run(std::span<const Chunk> chunks, Outputs& outputs, const std::function<void()>& meanwhile = nullptr);
  Outputs run(std::span<const Chunk> chunks) {
    Outputs outputs;
    run(chunks, outputs);
    return outputs;
  }

  // Does what the first passes of a size would wait for, for steps of up to `slots` slots and prompts of up to `prompt`
  // tokens in all: packs weights, loads and tunes kernels, records steps. Nothing on the CPU.
  void prepare(const Tier& tier, Index slots, Index prompt);

  // Feeds each slot its first token and then, `steps` times in all, the most likely next one, which never leaves the
  // device. Returns the tokens found, steps x slots. Slots are all different and of one tier.
  std::vector<std::int32_t> generate(std::span<const Slot> slots, std::span<const std::int32_t> first, Index steps);

  StateSnapshot snapshot(Slot slot) const;
  // Refuses a snapshot of other sizes.
  Slot restore(const Tier& tier, const StateSnapshot& snapshot, SlotOptions options = {});

  // The bytes that pack() writes. It copies in order with the passes and waits for none; the memory is on the engine's
  // device. unpack() opens a slot that goes on from there and reads the memory likewise: later calls may overwrite it.
  std::size_t packed_bytes(Slot slot) const;
  PackedState pack(Slot slot, std::byte* to) const;
  Slot unpack(const Tier& tier, const PackedState& packed, SlotOptions options = {});

  // Bytes of the state of a slot where it lies, and of a tier's weights as they are used.
  std::size_t state_bytes(Slot slot) const;
  std::size_t weight_bytes(const Tier& tier);
  // Of a step of so many slots of a tier.
  StepWeights step_weights(const Tier& tier, Index slots);
  // What it computes in.
  Precision precision() const;

 private:
  class Impl;
  template <class T>
  class Typed;
  std::unique_ptr<Impl> impl_;
};

}  // namespace essh
