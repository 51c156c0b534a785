#pragma once
#include <vector>

#include "essh/decode/engine.h"

// Which tokens a pass takes and which of its rows somebody wants.
namespace essh {

// The tokens of a chunk that one pass takes.
struct PassPiece {
  std::size_t chunk;
  Index begin, length;
  bool last;
  bool steps = false;  // keeps the state after each of its tokens
};

// Rows of a pass whose logits are wanted, and where they go.
struct Asked {
  Index row, count;
  const Chunk* chunk;
  Index position;  // of the first, in its chunk
  Outputs::Entry* entry;
  float* to;  // logits or losses on the host; null: a token is drawn instead

  bool scores() const { return chunk->wanted == Wanted::Scores; }
};

// Rows whose logits or losses come back; those of a token that is drawn on the device do not.
inline Index wanted_rows(const Chunk& chunk) {
  switch (chunk.wanted) {
    case Wanted::Last:
    case Wanted::Token:
      return 1;
    case Wanted::Rows:
      return std::ssize(chunk.rows);
    case Wanted::All:
    case Wanted::Scores:
      return std::ssize(chunk.tokens);
    default:
      return 0;
  }
}

// Appends rows to a list, joining neighbours that go to neighbouring places. Targets are those of one chunk.
inline void ask(std::vector<Asked>& list, Asked rows) {
  const auto follows = [&](const Asked& last) {
    const Index width = rows.scores() ? 1 : rows.entry->logits.cols;
    return last.to && rows.to && last.row + last.count == rows.row && last.to + last.count * width == rows.to &&
           last.scores() == rows.scores() && (!rows.scores() || last.entry == rows.entry);
  };
  if (!list.empty() && follows(list.back()))
    list.back().count += rows.count;
  else
    list.push_back(rows);
}

// The rows of a piece, from `first_row` of the pass on, whose logits its chunk wants.
inline void add_asked(const Chunk& chunk, const PassPiece& piece, Index first_row, Index vocabulary,
                      Outputs::Entry& entry, Outputs& outputs, std::vector<Asked>& asked) {
  const auto add = [&](Index position, Index count, Index output_row) {
    const float* to =
        chunk.wanted == Wanted::Scores ? entry.losses.data() + output_row : entry.logits.data + output_row * vocabulary;
    ask(asked, {first_row + position - piece.begin, count, &chunk, position, &entry,
                outputs.storage.data() + (to - outputs.storage.data())});
  };
  switch (chunk.wanted) {
    case Wanted::Token:
      if (entry.logits.empty()) {
        if (piece.last)
          asked.push_back({first_row + piece.length - 1, 1, &chunk, piece.begin + piece.length - 1, &entry, nullptr});
        break;
      }
      [[fallthrough]];
    case Wanted::Last:
      if (piece.last) add(piece.begin + piece.length - 1, 1, 0);
      break;
    case Wanted::All:
    case Wanted::Scores:
      add(piece.begin, piece.length, piece.begin);
      break;
    case Wanted::Rows:
      for (std::size_t i = 0; i < chunk.rows.size(); ++i) {
        if (chunk.rows[i] >= piece.begin && chunk.rows[i] < piece.begin + piece.length)
          add(chunk.rows[i], 1, static_cast<Index>(i));
      }
      break;
    default:
      break;
  }
}

// Gives every chunk its place in the outputs. drawn(chunk): its token is drawn where its logits are, and these stay
// there.
template <class Drawn>
void place_outputs(std::span<const Chunk> chunks, Index vocabulary, const Drawn& drawn, Outputs& outputs) {
  std::size_t size = 0;
  const auto width = [&](const Chunk& chunk) { return chunk.wanted == Wanted::Scores ? 1 : vocabulary; };
  const auto rows_of = [&](const Chunk& chunk) { return drawn(chunk) ? 0 : wanted_rows(chunk); };
  for (const auto& chunk : chunks) size += static_cast<std::size_t>(rows_of(chunk) * width(chunk));
  outputs.entries.assign(chunks.size(), {});
  if (outputs.storage.size() < size) outputs.storage.resize(size);
  const float* at = outputs.storage.data();
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const Index rows = rows_of(chunks[i]);
    if (chunks[i].wanted == Wanted::Scores)
      outputs.entries[i].losses = {at, static_cast<std::size_t>(rows)};
    else if (rows > 0)
      outputs.entries[i].logits = dense(at, rows, vocabulary);
    at += rows * width(chunks[i]);
  }
}

}  // namespace essh
