#pragma once
#include <bit>
#include <vector>

#include "essh/decode/engine.h"
#include "essh/kernels/draw_token.h"

namespace essh {

// Draws the tokens of a pass where its logits are; tokens and log-probabilities alone come to the host.
class TokenDraws {
 public:
  // A row of the logits whose chunk wants its token.
  void add(Index row, const Chunk& chunk, Outputs::Entry& entry) {
    DrawOptions options;
    if (chunk.sampler) options = chunk.sampler->plan(chunk.changes, changes_);
    options.row = row;
    options.alternatives = chunk.sampler ? chunk.alternatives : -1;
    options_.push_back(options);
    entries_.push_back(&entry);
  }

  // Draws for all rows that were added since. Calls launched() before it waits for the tokens.
  template <class Launched>
  void run(Stream& stream, Matrix<const float> logits, const Launched& launched) {
    if (empty()) return;
    const auto count = std::ssize(options_), changes = std::ssize(changes_);
    Index alternatives = 0;
    for (const auto& options : options_) alternatives = std::max<Index>(alternatives, options.alternatives);
    grow(inputs_, stream, count * kOptionBytes + changes * static_cast<Index>(sizeof(LogitChange)));
    grow(results_, stream, count * (1 + alternatives) * static_cast<Index>(sizeof(DrawnToken)));
    const Vector<DrawOptions> options{reinterpret_cast<DrawOptions*>(inputs_.data()), count};
    const Vector<LogitChange> list{reinterpret_cast<LogitChange*>(inputs_.data() + count * kOptionBytes), changes};
    const auto results = reinterpret_cast<DrawnToken*>(results_.data());
    upload(stream, options_, options);
    if (changes > 0) upload(stream, changes_, list);
    launch(stream, DrawToken{.logits = logits,
                             .options = options,
                             .changes = list,
                             .drawn = {results, count},
                             .top = dense(results + count, count, alternatives)});
    launched();
    drawn_.resize(static_cast<std::size_t>(count * (1 + alternatives)));
    download(stream, Vector<DrawnToken>{results, std::ssize(drawn_)}, drawn_);
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      auto& entry = *entries_[i];
      entry.token = drawn_[i].token;
      entry.logprob = drawn_[i].logprob;
      const auto* top = drawn_.data() + count + static_cast<Index>(i) * alternatives;
      for (Index n = 0; n < options_[i].alternatives && entry.token >= 0; ++n) {
        if (top[n].token >= 0) entry.top.push_back(top[n]);
      }
    }
    clear();
  }

  bool empty() const { return options_.empty(); }
  void clear() {
    options_.clear();
    changes_.clear();
    entries_.clear();
  }

 private:
  static constexpr Index kOptionBytes = sizeof(DrawOptions);
  static_assert(sizeof(DrawOptions) % alignof(LogitChange) == 0);

  // Nothing uses the memory between two runs: each waits for its results.
  static void grow(Array<std::byte>& memory, Stream& stream, Index bytes) {
    if (memory.size() >= bytes) return;
    memory = {};
    memory = Array<std::byte>(stream.device(), static_cast<Index>(std::bit_ceil(static_cast<std::uint64_t>(bytes))),
                              "draws of tokens");
  }

  std::vector<DrawOptions> options_;
  std::vector<LogitChange> changes_;
  std::vector<Outputs::Entry*> entries_;
  std::vector<DrawnToken> drawn_;
  Array<std::byte> inputs_, results_;
};

}  // namespace essh
