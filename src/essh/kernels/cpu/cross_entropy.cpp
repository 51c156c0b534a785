#include "essh/kernels/cross_entropy.h"

#include <algorithm>
#include <cmath>

#include "essh/kernels/cpu/reduce.h"
#include "essh/kernels/cpu/vector_math.h"

namespace essh {

template <class T>
void run(cpu::Stream& stream, const CrossEntropy<T>& op) {
  const Index vocabulary = op.logits.cols;
  stream.pool().split(op.logits.rows, [&](Index begin, Index end, int thread) {
    cpu::Scratch scratch(stream, thread);
    T* weight = scratch.take<T>(vocabulary);
    for (Index r = begin; r < end; ++r) {
      const T* logits = op.logits.row(r);
      const auto target = op.targets[r];
      if (target == kIgnoredTarget) {
        op.loss[r] = 0;
        if (!op.d_logits.empty()) std::fill_n(op.d_logits.row(r), vocabulary, T(0));
        continue;
      }
      const T largest = cpu::largest(vocabulary, logits);
      for (Index c = 0; c < vocabulary; ++c) weight[c] = logits[c] - largest;
      cpu::exp(vocabulary, weight, weight);
      const auto total = cpu::sum_of<double>(vocabulary, [&](Index c) { return static_cast<double>(weight[c]); });
      op.loss[r] = static_cast<T>(std::log(total) + static_cast<double>(largest) - static_cast<double>(logits[target]));
      if (op.d_logits.empty()) continue;
      T* d_logits = op.d_logits.row(r);
      const T factor = static_cast<T>(op.scale / total);
      for (Index c = 0; c < vocabulary; ++c) d_logits[c] = weight[c] * factor;
      d_logits[target] -= static_cast<T>(op.scale);
    }
  });
}

template void run(cpu::Stream&, const CrossEntropy<float>&);
template void run(cpu::Stream&, const CrossEntropy<double>&);

}  // namespace essh
