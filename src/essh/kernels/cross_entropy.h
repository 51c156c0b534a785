#pragma once
#include "essh/device/stream.h"

namespace essh {

inline constexpr std::int32_t kIgnoredTarget = -1;

// loss[r] = log sum exp(logits[r]) - logits[r][target[r]], 0 for ignored targets. A non-empty d_logits receives the
// gradient times `scale`.
template <class T>
struct CrossEntropy {
  Matrix<const T> logits;  // tokens x vocabulary
  Vector<const std::int32_t> targets;
  Vector<Wide<T>> loss;  // (=)
  Matrix<T> d_logits;    // (=) may alias logits; may be empty
  double scale = 1;
};

template <class T>
void run(cpu::Stream&, const CrossEntropy<T>&);
template <class T>
void run(cuda::Stream&, const CrossEntropy<T>&);

}  // namespace essh
