#include <algorithm>
#include <bit>
#include <map>
#include <optional>
#include <set>

#include "essh/decode/asked_rows.h"
#include "essh/decode/engine_impl.h"
#include "essh/decode/pass_inputs.h"
#include "essh/decode/slot_table.h"
#include "essh/decode/step_padding.h"
#include "essh/decode/tier_model.h"
#include "essh/decode/token_draws.h"
#include "essh/kernels/clear.h"
#include "essh/kernels/copy.h"
#include "essh/kernels/cross_entropy.h"
#include "essh/kernels/largest_logit.h"

namespace essh {
namespace {

// Steps of generate() between two looks at what was drawn.
constexpr std::size_t kUnseenSteps = 256;
// Keys of drawn tokens that are kept on the device at most.
constexpr std::size_t kKeys = 1 << 16;

// Logits held at once, in elements.
Index logit_elements(Device device) {
  return Index{device == Device::Cpu ? 4 : 64} << 20;
}

}  // namespace

template <class T>
class Engine::Typed : public Impl {
 public:
  using Impl::Impl;
  ~Typed() override {
    const auto lock = stream_.acquire();
    stream_.wait();
  }

  Slot open(const Tier& tier, SlotOptions options) override { return add(tier, find(tier.capacity), options.rewind); }

  Slot fork(Slot slot) override {
    const auto& from = entry(slot);
    return fill(add(from.tier, *from.model, from.state->rewindable()),
                [&](SlotState& state) { state.copy_from(*from.state); });
  }

  void close(Slot slot) override {
    auto& closed = entry(slot);
    pools_[{closed.model, closed.state->rewindable()}].push_back(std::move(closed.state));
    slots_.erase(slot);
  }

  SlotState& state(Slot slot) const override { return *entry(slot).state; }
  const Tier& tier(Slot slot) const override { return entry(slot).tier; }
  std::size_t weight_bytes(const Tier& tier) override { return find(tier.capacity).weight_bytes(); }
  StepWeights step_weights(const Tier& tier, Index slots) override {
    auto& model = find(tier.capacity);
    const bool fast = streams(model, slots);
    const auto codes = fast ? streamed(model)->quantisation() : std::string_view();
    return {.format = codes.empty() ? traits(model.matrix_format()).name : std::string(codes),
            .bytes = model.step_bytes(!codes.empty())};
  }

  StateSnapshot snapshot(Slot slot) const override {
    const auto& from = entry(slot);
    return {.capacity = from.tier.capacity,
            .position = from.state->position(),
            .rows = format_of<T>(),
            .parts = from.state->download()};
  }

  Slot restore(const Tier& tier, const StateSnapshot& snapshot, SlotOptions options) override {
    auto& model = find(tier.capacity);
    std::vector<std::size_t> sizes;
    for (const auto& part : snapshot.parts) sizes.push_back(part.size());
    if (snapshot.capacity != tier.capacity || snapshot.position < 0 || snapshot.position > kLongestSequence ||
        snapshot.rows != format_of<T>() || sizes != SlotState::snapshot_sizes(model.parts(), snapshot.position)) {
      fail(ErrorKind::BadFile,
           "the state is not of this model at {} in {}, or was saved with another --state-dtype or --window-cache",
           sizes_of(model_.config(), tier.capacity), traits(format_of<T>()).name);
    }
    return fill(add(tier, model, options.rewind),
                [&](SlotState& state) { state.upload(snapshot.parts, snapshot.position); });
  }

  Slot unpack(const Tier& tier, const PackedState& packed, SlotOptions options) override {
    ESSH_ASSERT(packed.capacity == tier.capacity);
    return fill(add(tier, find(tier.capacity), options.rewind),
                [&](SlotState& state) { state.unpack(packed.data, packed.position); });
  }

  void prepare(const Tier& tier, Index slots, Index prompt) override {
    if (stream_.device() == Device::Cpu || options_.eager) return;
    slots = std::min(slots, kPassRows);  // more are several passes
    auto& model = find(tier.capacity);
    // Everything runs on this slot; sequences of a step are the same one many times.
    const auto slot = add(tier, model, 0);
    close(fill(slot, [&](SlotState& state) {
      shared_ = nullptr;
      meanwhile_ = nullptr;
      // The largest sizes first: memory that grows later drops recordings.
      for (Index count = padding_.padded(slots); count > 0; --count) {
        if (padding_.padded(count) == count) prepare_step(model, state, count);
      }
      const auto rows = std::bit_floor(static_cast<std::uint64_t>(std::clamp(prompt, Index{1}, options_.piece)));
      for (auto count = static_cast<Index>(rows); count > 1; count /= 2) prepare_prompt(slot, count);
      for (auto count = std::bit_ceil(static_cast<std::uint64_t>(slots)); count > 0; count /= 2)
        prepare_head(model, static_cast<Index>(count));
    }));
  }

  std::vector<std::int32_t> generate(std::span<const Slot> slots, std::span<const std::int32_t> first,
                                     Index steps) override {
    ESSH_ASSERT(!slots.empty() && first.size() == slots.size() && steps >= 0);
    shared_ = nullptr;
    meanwhile_ = nullptr;
    model_.check_tokens(first, "tokens");
    std::vector<SlotState*> states;
    for (const auto slot : slots) {
      ESSH_ASSERT(entry(slot).model == entry(slots.front()).model);
      states.push_back(entry(slot).state.get());
    }
    auto& model = *entry(slots.front()).model;
    const auto count = slots.size();
    std::vector<std::int32_t> tokens, inputs(first.begin(), first.end());
    while (std::ssize(tokens) < steps * std::ssize(slots)) {
      const auto left = static_cast<std::size_t>(steps) - tokens.size() / count;
      const auto now = std::min({kUnseenSteps, left, std::max<std::size_t>(1, kKeys / count)});
      const auto drawn = draw(model, states, inputs, static_cast<Index>(now));
      for (const auto key : drawn) tokens.push_back(token_of(key));
      for (std::size_t b = 0; b < count; ++b) inputs[b] = token_of_key(drawn[(now - 1) * count + b]);
    }
    return tokens;
  }

  void run(std::span<const Chunk> chunks, Outputs& outputs, const std::function<void()>& meanwhile) override {
    check(chunks);
    draws_.clear();
    meanwhile_ = &meanwhile;
    if (stream_.device() == Device::Cpu) launched();
    if (only_draws(chunks))
      draw_all(chunks, outputs);
    else
      run_passes(chunks, outputs);
    launched();
    draw_on_host(chunks, outputs);
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      const auto token = outputs.entries[i].token;
      if (chunks[i].sampler && token >= 0) chunks[i].sampler->drew(token);
    }
  }

 private:
  struct Entry {
    Tier tier = {};
    TierModel<T>* model = nullptr;
    std::unique_ptr<SlotState> state = nullptr;
    std::uint64_t run = 0;  // the last one with a chunk of it
  };

  // A step whose tokens are drawn in the pass, and one whose logits are left; each until it is recorded.
  void prepare_step(TierModel<T>& model, SlotState& state, Index count) {
    const std::vector<SlotState*> states(static_cast<std::size_t>(count), &state);
    const std::vector<std::int32_t> tokens(states.size());
    const bool fast = streams(model, count);
    for (int i = 0; i <= (fast ? 0 : Recording::kEager); ++i) {
      draw(model, states, tokens, 1);
      state.clear();
      if (fast) continue;
      state.reserve(1);
      inputs_.write(model.capacity(), model.parts().size(), states, count);
      std::ranges::copy(tokens, inputs_.template at<std::int32_t>(inputs_.tokens));
      const Segment segment{0, 0, count, 1};
      recorded_logits(model, {&segment, 1}, bound(model, 1));
      stream_.wait();
    }
  }
  void prepare_prompt(Slot slot, Index tokens) {
    const std::vector<std::int32_t> zeros(static_cast<std::size_t>(tokens));
    Sampler sampler({.temperature = 1});
    const Chunk chunk{.slot = slot, .tokens = zeros, .wanted = Wanted::Token, .sampler = &sampler};
    Outputs outputs;
    run({&chunk, 1}, outputs, nullptr);
    entry(slot).state->clear();
  }
  // The logits after so many prompts.
  void prepare_head(TierModel<T>& model, Index prompts) {
    const Index vocabulary = model_.config().vocab_size;
    arena_.release();
    const auto hidden = arena_.matrix<T>(std::min(prompts, most_answered()), model_.config().hidden_size);
    clear(stream_, Vector<T>{hidden.data, hidden.rows * hidden.stride});
    model.model().head(pass_of(model, RowBits::Ranged), model.weights(), hidden,
                       arena_.matrix<float>(hidden.rows, vocabulary));
    stream_.wait();
  }

  // The usual step of many texts, which needs no search for passes: the most likely next tokens of one tier.
  bool only_draws(std::span<const Chunk> chunks) const {
    return !chunks.empty() && std::ssize(chunks) <= kPassRows &&
           std::ranges::all_of(chunks, [&, model = entry(chunks[0].slot).model](const Chunk& chunk) {
             return is_single(chunk) && takes_likeliest(chunk) && entry(chunk.slot).model == model;
           });
  }
  void draw_all(std::span<const Chunk> chunks, Outputs& outputs) {
    shared_ = nullptr;
    outputs.entries.assign(chunks.size(), {});
    std::vector<PassPiece> pieces;
    for (std::size_t i = 0; i < chunks.size(); ++i) cut(chunks[i], i, pieces);
    draw_pass(*entry(chunks[0].slot).model, chunks, pieces, outputs);
  }

  void run_passes(std::span<const Chunk> chunks, Outputs& outputs) {
    find_shared(chunks);
    find_drawn(chunks);
    place_outputs(
        chunks, model_.config().vocab_size, [&](const Chunk& chunk) { return is_drawn(chunk) || draws_here(chunk); },
        outputs);
    // Pieces of chunk i are those from first[i] to first[i + 1].
    std::vector<PassPiece> pieces;
    std::vector<std::size_t> first = {0};
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      cut(chunks[i], i, pieces);
      first.push_back(pieces.size());
    }
    // Tier by tier, the next pieces of all its chunks in one pass.
    std::vector<TierModel<T>*> models;
    for (const auto& chunk : chunks) {
      auto* model = model_of(chunk);
      if (std::ranges::find(models, model) == models.end()) models.push_back(model);
    }
    for (auto* model : models) {
      auto next = first;
      const bool alone = model == shared_ || streamed(*model) != nullptr;
      for (;;) {
        std::vector<PassPiece> pass;
        Index rows = 0;
        for (std::size_t i = 0; i < chunks.size(); ++i) {
          if (model_of(chunks[i]) != model || next[i] == first[i + 1]) continue;
          const auto& piece = pieces[next[i]];
          if (rows > 0 && is_drawn(chunks[i]) != is_drawn(chunks[pass.front().chunk])) continue;
          // Single tokens have passes of their own where these are streamed.
          if (alone && rows > 0 && is_single(piece) != is_single(pass.front())) continue;
          if (rows > 0 && rows + piece.length > std::max(kPassRows, options_.piece)) continue;
          rows += piece.length;
          pass.push_back(piece);
          ++next[i];
        }
        if (pass.empty()) break;
        run_pass(*model, chunks, pass, outputs);
      }
    }
  }

  // Called before the host waits for results.
  void launched() {
    const auto* meanwhile = std::exchange(meanwhile_, nullptr);
    if (meanwhile && *meanwhile) (*meanwhile)();
  }

  static std::int32_t token_of(LogitKey key) {
    if (key == 0) fail(ErrorKind::BadFile, "no logit is a number; the weights are damaged");
    return token_of_key(key);
  }

  // Tokens that are wanted and whose logits came to the host.
  void draw_on_host(std::span<const Chunk> chunks, Outputs& outputs) {
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      auto& entry = outputs.entries[i];
      if (chunks[i].wanted != Wanted::Token || entry.logits.empty()) continue;
      draws_.add(entry.logits.data - outputs.storage.data(), chunks[i], entry);
    }
    if (draws_.empty()) return;
    if (!host_) host_.emplace(cpu_stream());
    // Rows begin anywhere in the storage: a stride of 1.
    draws_.run(*host_, {outputs.storage.data(), std::ssize(outputs.storage), model_.config().vocab_size, 1}, [] {});
  }

  // Whose pass takes a chunk.
  TierModel<T>* model_of(const Chunk& chunk) const {
    return shared_ && chunk.tokens.size() == 1 ? shared_ : entry(chunk.slot).model;
  }
  // One model for the single tokens of several tiers, where their passes would cost more: with few sequences each tier
  // is a streamed step, and two of these take as long as one pass for all.
  void find_shared(std::span<const Chunk> chunks) {
    shared_ = nullptr;
    // With slopes the tiers have different weights.
    if (!options_.mixed_tiers || options_.deterministic || model_.config().elastic.slopes) return;
    std::set<const TierModel<T>*> tiers;
    Capacity most;
    Index count = 0;
    for (const auto& chunk : chunks) {
      if (chunk.tokens.size() != 1) continue;
      const auto* model = entry(chunk.slot).model;
      tiers.insert(model);
      ++count;
      most = {std::max(most.channels, model->capacity().channels), std::max(most.ffn, model->capacity().ffn)};
    }
    if (tiers.size() >= 3 || (tiers.size() == 2 && count > kStreamedSequences)) shared_ = &find(most);
  }

  static bool takes_likeliest(const Chunk& chunk) {
    return chunk.wanted == Wanted::Token &&
           (!chunk.sampler || (chunk.sampler->takes_likeliest() && chunk.changes.empty() && chunk.alternatives < 0));
  }
  // Whether the token of a chunk is drawn from the logits of its pass.
  bool draws_here(const Chunk& chunk) const {
    return chunk.wanted == Wanted::Token && (stream_.device() == Device::Cpu || options_.sample_on_device);
  }

  // The tiers of whose single tokens only the most likely next ones are wanted.
  void find_drawn(std::span<const Chunk> chunks) {
    drawn_tiers_.clear();
    for (const auto& chunk : chunks) {
      if (is_single(chunk)) drawn_tiers_.insert(model_of(chunk));
    }
    for (const auto& chunk : chunks) {
      if (is_single(chunk) && !takes_likeliest(chunk)) drawn_tiers_.erase(model_of(chunk));
    }
  }
  bool is_drawn(const Chunk& chunk) const { return is_single(chunk) && drawn_tiers_.contains(model_of(chunk)); }

  // Whether a token is a step of its own. In a deterministic engine a token whose state is kept is not: it has the bits
  // that it has among others.
  bool is_single(Index length, bool keeps_states) const {
    return length == 1 && !(keeps_states && options_.deterministic);
  }
  bool is_single(const Chunk& chunk) const { return is_single(std::ssize(chunk.tokens), chunk.keeps_states); }
  bool is_single(const PassPiece& piece) const { return is_single(piece.length, piece.steps); }

  Entry& entry(Slot slot) const { return slots_.at(slot); }

  // Codes only where the model has windows, narrow states where it has recurrent ones.
  StateFormats formats() const {
    return {.rows = format_of<T>(),
            .coded_windows = options_.fp8_windows && model_.config().has(MixerKind::SlidingAttention),
            .narrow_states = options_.bf16_states && model_.config().has(MixerKind::Spectral)};
  }

  TierModel<T>& find(Capacity capacity) {
    inputs_.coded_windows = formats().coded_windows;
    inputs_.narrow_states = formats().narrow_states;
    auto& model = tiers_[{capacity.channels, capacity.ffn}];
    if (!model) model = std::make_unique<TierModel<T>>(model_, capacity, stream_, formats());
    return *model;
  }

  Slot add(const Tier& tier, TierModel<T>& model, Index rewind) {
    if (rewind < 0 || rewind > kSpareRows)
      fail(ErrorKind::Usage, "a slot can keep 0 to {} tokens for rolling back, not {}", kSpareRows, rewind);
    std::unique_ptr<SlotState> state;
    if (auto& pool = pools_[{&model, rewind}]; !pool.empty()) {
      state = std::move(pool.back());
      pool.pop_back();
      state->clear();
    } else {
      state = std::make_unique<SlotState>(model.capacity(), model.parts(), model.fixed_offsets(), model.fixed_bytes(),
                                          rewind, stream_);
    }
    return slots_.add({.tier = tier, .model = &model, .state = std::move(state)});
  }

  // Without memory for its state there is no slot.
  template <class Body>
  Slot fill(Slot slot, const Body& body) {
    try {
      body(*entry(slot).state);
    } catch (...) {
      close(slot);
      throw;
    }
    return slot;
  }

  void check(std::span<const Chunk> chunks) {
    ++runs_;
    for (const auto& chunk : chunks) {
      ESSH_ASSERT(std::exchange(entry(chunk.slot).run, runs_) != runs_);
      ESSH_ASSERT(!chunk.tokens.empty());
      ESSH_ASSERT(chunk.wanted != Wanted::Scores || chunk.targets.size() == chunk.tokens.size());
      ESSH_ASSERT(chunk.sampler == nullptr || chunk.wanted == Wanted::Token);
      ESSH_ASSERT(!chunk.keeps_states || std::ssize(chunk.tokens) <= entry(chunk.slot).state->steps());
      model_.check_tokens(chunk.tokens, "tokens");
    }
  }

  // Pieces follow from the chunk and its slot alone.
  void cut(const Chunk& chunk, std::size_t index, std::vector<PassPiece>& pieces) const {
    const Index length = std::ssize(chunk.tokens);
    for (Index begin = 0; begin < length; begin += options_.piece) {
      const Index end = std::min(length, begin + options_.piece);
      pieces.push_back({index, begin, end - begin, end == length, chunk.keeps_states});
    }
  }

  template <class Body>
  void run_recorded(Recording& recording, const Body& body) {
    if (options_.eager)
      body();
    else
      recording.run(stream_, body);
  }

  Pass pass_of(const TierModel<T>& model, RowBits bits = RowBits::Free) {
    return {.stream = stream_,
            .arena = arena_,
            .capacity = full_capacity(model.model().config()),
            .bits = options_.deterministic ? RowBits::Alone : bits};
  }

  StreamedModel<T>* streamed(TierModel<T>& model) {
    const auto stored = formats();
    return options_.fused && !stored.coded_windows && !stored.narrow_states && stream_.device() != Device::Cpu
               ? model.streamed(stream_, options_.codes_from)
               : nullptr;
  }

  StreamedSequence sequence_of(const SlotState& state, std::int32_t token) const {
    return {.entering = state.entering_parts(),
            .leaving = state.leaving_parts(),
            .rows = state.caches(),
            .capacity = state.cache_capacity(),
            .position = state.position(),
            .newest = 0,  // set by the step
            .token = token,
            .drawn = nullptr};
  }

  // Keys of largest logits, zero: as many as a step wants. Those taken since `fresh` stay as they are.
  LogitKey* take_keys(std::size_t count, bool fresh) {
    const auto most = std::max(kKeys, count);
    if (static_cast<std::size_t>(keys_.size()) < most)
      keys_ = Array<LogitKey>(stream_.device(), static_cast<Index>(most), "drawn tokens"), fresh = true;
    if (fresh) {
      clear(stream_, keys_.view());
      keys_used_ = 0;
    }
    ESSH_ASSERT(keys_used_ + count <= static_cast<std::size_t>(keys_.size()));
    return keys_.data() + std::exchange(keys_used_, keys_used_ + count);
  }

  bool streams(TierModel<T>& model, Index count) {
    if (&model == shared_) return false;
    // In a deterministic engine single tokens take this path at any number; otherwise where it is the faster one.
    const auto* const fast = streamed(model);
    return fast && (options_.deterministic || count <= fast->faster_up_to());
  }

  // One token of each sequence, a few at a time.
  void run_streamed(TierModel<T>& model, std::span<const StreamedSequence> sequences, float* logits, LogitKey* keys) {
    auto& fast = *streamed(model);
    for (Index first = 0; first < std::ssize(sequences); first += fast.sequences()) {
      const Index count = std::min(fast.sequences(), std::ssize(sequences) - first);
      fast.step(sequences.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)),
                logits + first * model_.config().vocab_size, keys + first);
    }
  }

  // Steps with the most likely token each; returns their keys, steps x slots.
  std::vector<LogitKey> draw(TierModel<T>& model, std::span<SlotState* const> states,
                             std::span<const std::int32_t> first, Index steps) {
    const auto count = std::ssize(states);
    const bool fast = streams(model, count);
    const LogitKey* before = nullptr;
    LogitKey* all = nullptr;
    for (Index i = 0; i < steps; ++i) {
      Index longest = 0;
      for (auto* state : states) {
        state->reserve(1);
        longest = std::max(longest, state->position() + 1);
      }
      longest = bound(model, longest);
      auto* const found = take_keys(states.size(), i == 0);
      if (i == 0) all = found;
      if (fast) {
        std::vector<StreamedSequence> list;
        for (std::size_t b = 0; b < states.size(); ++b) {
          list.push_back(sequence_of(*states[b], first[b]));
          if (before) list.back().drawn = before + b;
        }
        run_streamed(model, list, step_logits(count).data, found);
      } else {
        draw_plainly(model, states, longest, first, before, found);
      }
      before = found;
      for (auto* state : states) state->advance(1);
    }
    launched();
    std::vector<LogitKey> drawn(static_cast<std::size_t>(steps * count));
    stream_.copy(drawn.data(), all, drawn.size() * sizeof(LogitKey));
    return drawn;
  }

  void pad(TierModel<T>& model, std::vector<SlotState*>& states) {
    if (stream_.device() != Device::Cpu && !options_.eager) padding_.pad(model, states, stream_);
  }

  // One step as a recorded pass. The tokens are those of `before`, or the first.
  void draw_plainly(TierModel<T>& model, std::span<SlotState* const> real, Index longest,
                    std::span<const std::int32_t> first, const LogitKey* before, LogitKey* found) {
    std::vector<SlotState*> states(real.begin(), real.end());
    pad(model, states);
    const auto count = std::ssize(states);
    inputs_.write(model.capacity(), model.parts().size(), states, count);
    const auto logits = step_logits(count);
    auto& step = model.step({count, longest, inputs_.mixed}, stream_);
    const auto* const device = step.upload(inputs_, stream_);
    if (step.keys.size() == 0) step.keys = Array<LogitKey>(stream_.device(), count, "drawn tokens");
    std::vector<LogitKey> given;
    for (const auto token : first) given.push_back(logit_key(0, token));
    given.resize(states.size(), logit_key(0, 0));
    const auto known = before ? real.size() : 0;
    if (before) stream_.copy(step.keys.data(), before, known * sizeof(LogitKey));
    stream_.copy(step.keys.data() + known, given.data() + known, (given.size() - known) * sizeof(LogitKey));
    const Segment segment{0, 0, count, 1};
    run_recorded(step.drawn, [&] {
      arena_.release();
      const auto tokens = inputs_.tokens_at(device);
      launch(stream_,
             DrawnTokens{.keys = step.keys.view(), .tokens = {const_cast<std::int32_t*>(tokens.data), tokens.size}});
      const auto pass = pass_of(model);
      const auto hidden =
          model.model().extend(pass, model.weights(), tokens, inputs_.batch_at(device, {&segment, 1}, longest));
      model.model().head(pass, model.weights(), hidden, logits);
      launch(stream_, LargestLogit{.logits = logits, .keys = step.keys.view()});
    });
    stream_.copy(found, step.keys.data(), real.size() * sizeof(LogitKey));
  }

  // Single tokens of which only the next are wanted.
  void draw_pass(TierModel<T>& model, std::span<const Chunk> chunks, std::span<const PassPiece> pieces,
                 Outputs& outputs) {
    std::vector<SlotState*> states;
    std::vector<std::int32_t> tokens;
    for (const auto& piece : pieces) {
      states.push_back(entry(chunks[piece.chunk].slot).state.get());
      tokens.push_back(chunks[piece.chunk].tokens[0]);
    }
    const auto keys = draw(model, states, tokens, 1);
    for (std::size_t b = 0; b < pieces.size(); ++b) outputs.entries[pieces[b].chunk].token = token_of_key(keys[b]);
  }

  void run_pass(TierModel<T>& model, std::span<const Chunk> chunks, std::vector<PassPiece>& pieces, Outputs& outputs) {
    if (is_drawn(chunks[pieces.front().chunk])) return draw_pass(model, chunks, pieces, outputs);
    std::ranges::stable_sort(pieces, {}, &PassPiece::length);
    const auto count = static_cast<Index>(pieces.size());
    std::vector<Segment> segments;
    std::vector<Asked> asked;
    std::vector<SlotState*> states;  // of each sequence of the pass
    std::vector<Index> steps_before;
    Index rows = 0, longest = 0;
    bool dropped = false;
    for (Index b = 0; b < count; ++b) {
      const auto& piece = pieces[static_cast<std::size_t>(b)];
      const auto& chunk = chunks[piece.chunk];
      auto& state = *entry(chunk.slot).state;
      state.reserve(piece.length);
      // Tokens whose states are kept are sequences of one token each, one segment after the other: products take them
      // all at once, and mixers in order.
      for (Index step = 0; step < (piece.steps ? piece.length : 1); ++step) {
        const Index length = piece.steps ? 1 : piece.length;
        if (segments.empty() || piece.steps || segments.back().length != length)
          segments.push_back({rows + step, std::ssize(states), 0, length});
        ++segments.back().sequences;
        states.push_back(&state);
        steps_before.push_back(step);
      }
      longest = std::max(longest, state.position() + piece.length);
      dropped = dropped || chunk.wanted == Wanted::Dropped;
      add_asked(chunk, piece, rows, model_.config().vocab_size, outputs.entries[piece.chunk], outputs, asked);
      rows += piece.length;
    }
    longest = bound(model, longest);

    const bool fast = rows == count && is_single(pieces.front()) && streams(model, count);
    const bool steps =
        !fast && rows == count && std::ssize(asked) > 0 && std::ranges::all_of(pieces, [&](const PassPiece& p) {
          return chunks[p.chunk].wanted == Wanted::Last || chunks[p.chunk].wanted == Wanted::Token;
        });
    if (steps) {
      pad(model, states);
      segments[0].sequences = rows = std::ssize(states);
    }
    if (rows == count || std::ranges::none_of(pieces, &PassPiece::steps)) steps_before.clear();
    inputs_.write(model.capacity(), model.parts().size(), states, rows, steps_before);
    auto* tokens = inputs_.at<std::int32_t>(inputs_.tokens);
    for (const auto& piece : pieces)
      tokens = std::copy_n(chunks[piece.chunk].tokens.begin() + piece.begin, piece.length, tokens);
    std::fill(tokens, inputs_.at<std::int32_t>(inputs_.tokens) + rows, 0);

    if (fast) {
      std::vector<StreamedSequence> list;
      for (std::size_t b = 0; b < states.size(); ++b)
        list.push_back(sequence_of(*states[b], inputs_.tokens_at(inputs_.bytes.data())[static_cast<Index>(b)]));
      const auto logits = step_logits(count);
      run_streamed(model, list, logits.data, take_keys(states.size(), true));
      arena_.release();
      for (const auto& one : asked) deliver(logits, one.row, one);
      draws_.run(stream_, logits, [&] { launched(); });
      return advance(chunks, pieces);
    }

    if (steps) {
      const auto logits = recorded_logits(model, segments, longest);
      for (const auto& one : asked) deliver(logits, one.row, one);
      draws_.run(stream_, logits, [&] { launched(); });
    } else {
      arena_.release();
      const std::byte* device = inputs_.bytes.data();
      if (stream_.device() != Device::Cpu) {
        const auto copy = arena_.vector<std::byte>(std::ssize(inputs_.bytes));
        upload(stream_, inputs_.bytes, copy);
        device = copy.data;
      }
      const bool prompts = std::ranges::none_of(pieces, &PassPiece::steps);
      const auto pass = pass_of(model, prompts ? RowBits::Ranged : RowBits::Free);
      const auto hidden = model.model().extend(pass, model.weights(), inputs_.tokens_at(device),
                                               inputs_.batch_at(device, segments, longest));
      if (dropped) drop_logits(model, pass, hidden);
      answer(model, pass, hidden, asked);
    }
    advance(chunks, pieces);
  }

  // The logits of a step of inputs_, which is one token of each sequence.
  Matrix<float> recorded_logits(TierModel<T>& model, std::span<const Segment> segments, Index longest) {
    const auto logits = step_logits(inputs_.count);
    auto& step = model.step({inputs_.count, longest, inputs_.mixed}, stream_);
    const auto* device = step.upload(inputs_, stream_);
    run_recorded(step.recording, [&] {
      arena_.release();
      const auto pass = pass_of(model);
      const auto hidden = model.model().extend(pass, model.weights(), inputs_.tokens_at(device),
                                               inputs_.batch_at(device, segments, longest));
      model.model().head(pass, model.weights(), hidden, logits);
    });
    return logits;
  }

  void advance(std::span<const Chunk> chunks, std::span<const PassPiece> pieces) {
    for (const auto& piece : pieces) {
      auto& state = *entry(chunks[piece.chunk].slot).state;
      for (Index step = 0; step < (piece.steps ? piece.length : 1); ++step)
        state.advance(piece.steps ? 1 : piece.length);
    }
  }

  // A bound on positions that many passes share, for recorded launches.
  static Index bound(const TierModel<T>& model, Index longest) {
    Index window = 1;
    for (const auto& part : model.parts()) {
      if (part.kind != StatePart::Kind::Rows) continue;
      if (part.window == 0)
        return static_cast<Index>(std::bit_ceil(static_cast<std::uint64_t>(std::max<Index>(longest, 256))));
      window = std::max(window, part.window);
    }
    return window;
  }

  // Room for the logits of a step, which all recorded steps share.
  Matrix<float> step_logits(Index count) {
    const Index vocabulary = model_.config().vocab_size;
    if (step_logits_.size() < count * vocabulary) {
      stream_.wait();
      for (auto& [capacity, model] : tiers_) model->forget_steps();
      step_logits_ = {};
      const auto room = static_cast<Index>(std::bit_ceil(static_cast<std::uint64_t>(count)));
      step_logits_ = Array<float>(stream_.device(), room * vocabulary, "logits");
    }
    return dense(step_logits_.data(), count, vocabulary);
  }

  void copy_rows(Matrix<const float> logits, float* to) {
    launched();
    stream_.copy(to, logits.data, static_cast<std::size_t>(logits.rows * logits.cols) * sizeof(float));
  }

  // What a chunk asked for, from `row` of the logits on. Tokens are drawn by draws_.run().
  void deliver(Matrix<const float> logits, Index row, const Asked& one) {
    if (one.to == nullptr)
      draws_.add(row, *one.chunk, *one.entry);
    else if (one.scores())
      score(logits.middle(row, one.count), one);
    else
      copy_rows(logits.middle(row, one.count), one.to);
  }

  // Rows of logits that are computed at once.
  Index most_answered() const {
    return std::max<Index>(16, logit_elements(stream_.device()) / model_.config().vocab_size);
  }
  // The head over the rows asked for, a bounded number at a time.
  void answer(TierModel<T>& model, const Pass& pass, Matrix<const T> hidden, const std::vector<Asked>& asked) {
    const Index vocabulary = model_.config().vocab_size;
    const Index most = most_answered();
    for (std::size_t i = 0; i < asked.size();) {
      // A block of rows: a stretch of one entry, or several short ones gathered.
      const auto mark = arena_.mark();
      if (asked[i].count >= most || i + 1 == asked.size()) {
        for (Index first = 0; first < asked[i].count; first += most) {
          auto part = asked[i];
          part.row += first;
          part.position += first;
          part.count = std::min(most, part.count - first);
          part.to += first * (part.scores() ? 1 : vocabulary);
          answer_block(model, pass, hidden.middle(part.row, part.count), {&part, 1});
        }
        ++i;
      } else {
        std::size_t end = i;
        Index rows = 0;
        while (end < asked.size() && rows + asked[end].count <= most) rows += asked[end++].count;
        const auto gathered = arena_.matrix<T>(rows, hidden.cols);
        Index row = 0;
        for (std::size_t k = i; k < end; ++k) {
          launch(stream_, Copy<T>{.from = hidden.middle(asked[k].row, asked[k].count),
                                  .to = gathered.middle(row, asked[k].count)});
          row += asked[k].count;
        }
        answer_block(model, pass, gathered, std::span(asked).subspan(i, end - i));
        i = end;
      }
      arena_.release(mark);
    }
  }

  void answer_block(TierModel<T>& model, const Pass& pass, Matrix<const T> hidden, std::span<const Asked> asked) {
    const auto mark = arena_.mark();
    const auto logits = arena_.matrix<float>(hidden.rows, model_.config().vocab_size);
    model.model().head(pass, model.weights(), hidden, logits);
    Index row = 0;
    for (const auto& one : asked) {
      deliver(logits, row, one);
      row += one.count;
    }
    draws_.run(stream_, logits, [&] { launched(); });
    arena_.release(mark);
  }

  void score(Matrix<const float> logits, const Asked& one) {
    static_assert(kUnscored == kIgnoredTarget);
    const auto targets = arena_.vector<std::int32_t>(one.count);
    const auto loss = arena_.vector<float>(one.count);
    upload(stream_,
           one.chunk->targets.subspan(static_cast<std::size_t>(one.position), static_cast<std::size_t>(one.count)),
           targets);
    launch(stream_, CrossEntropy<float>{.logits = logits, .targets = targets, .loss = loss, .d_logits = {}});
    launched();
    download(stream_, loss, {one.to, static_cast<std::size_t>(one.count)});
  }

  void drop_logits(TierModel<T>& model, const Pass& pass, Matrix<const T> hidden) {
    constexpr Index kRows = 2048;
    const auto mark = arena_.mark();
    const auto logits = arena_.matrix<T>(std::min(kRows, hidden.rows), model_.config().vocab_size);
    for (Index row = 0; row < hidden.rows; row += kRows) {
      const Index count = std::min(kRows, hidden.rows - row);
      model.model().head(pass, model.weights(), hidden.middle(row, count), logits.top(count));
    }
    arena_.release(mark);
  }

  std::map<std::pair<Index, Index>, std::unique_ptr<TierModel<T>>> tiers_;
  mutable SlotTable<Entry> slots_;
  std::map<std::pair<const TierModel<T>*, Index>, std::vector<std::unique_ptr<SlotState>>> pools_;
  StepPadding<T> padding_;
  // Of the run at work: the model of the single tokens of several tiers, and the models whose tokens are drawn.
  TierModel<T>* shared_ = nullptr;
  std::set<const TierModel<T>*> drawn_tiers_;
  const std::function<void()>* meanwhile_ = nullptr;  // null once called
  std::uint64_t runs_ = 0;
  PassInputs inputs_;
  TokenDraws draws_;
  std::optional<Stream> host_;  // for draws from logits on the host
  Array<float> step_logits_;
  Array<LogitKey> keys_;
  std::size_t keys_used_ = 0;
};

Engine::Engine(StoredModel model, Stream& stream, EngineOptions options) {
  const auto& config = model.config();
  if (options.fp8_windows && config.has(MixerKind::SlidingAttention) && config.sliding_attention.head_dim % 8 != 0)
    fail(ErrorKind::Usage, "fp8 windows take heads of a multiple of 8 dimensions, this model's have {}",
         config.sliding_attention.head_dim);
  const auto lock = stream.acquire();
  if (precision_on(stream.device(), options.precision) == Precision::BFloat16)
    impl_ = std::make_unique<Typed<BFloat16>>(std::move(model), stream, options);
  else
    impl_ = std::make_unique<Typed<float>>(std::move(model), stream, options);
}
Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;

}  // namespace essh
