#pragma once
#include <vector>

#include "essh/decode/engine.h"

// Which tokens a pass takes and which of its rows somebody wants.
namespace essh {

// The tokens of a chunk that one pass takes.
struct Piece {
  std::size_t chunk;
  Index begin, length;
  bool last;
};

// Rows of a pass whose logits are wanted, and where they go.
struct Asked {
  Index row, count;
  const Chunk* chunk;
  Index position;  // of the first, in its chunk
  Outputs::Entry* entry;
  float* to;  // logits or losses on the host

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
    return last.row + last.count == rows.row && last.to + last.count * width == rows.to &&
           last.scores() == rows.scores() && (!rows.scores() || last.entry == rows.entry);
  };
  if (!list.empty() && follows(list.back()))
    list.back().count += rows.count;
  else
    list.push_back(rows);
}

}  // namespace essh
