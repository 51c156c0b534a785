#include "essh/kernels/largest_logit.h"

#include <algorithm>

namespace essh {

void run(cpu::Stream& stream, const LargestLogit& op) {
  stream.pool().each(op.logits.rows, [&](Index row, int) {
    LogitKey best = op.keys[row];
    for (Index c = 0; c < op.logits.cols; ++c)
      best = std::max(best, logit_key(op.logits(row, c), static_cast<std::int32_t>(c)));
    op.keys[row] = best;
  });
}

void run(cpu::Stream&, const DrawnTokens& op) {
  for (Index i = 0; i < op.keys.size; ++i) {
    op.tokens[i] = token_of_key(op.keys[i]);
    op.keys[i] = 0;
  }
}

}  // namespace essh
