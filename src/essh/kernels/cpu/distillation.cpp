#include "essh/kernels/distillation.h"

#include <algorithm>
#include <cmath>

#include "essh/kernels/cpu/vector_math.h"
#include "essh/kernels/cross_entropy.h"

namespace essh {
namespace {

// weights = softmax(logits); returns log sum exp(logits).
template <class T>
double softmax(const T* logits, Index count, T* weights) {
  const T largest = *std::max_element(logits, logits + count);
  for (Index c = 0; c < count; ++c) weights[c] = logits[c] - largest;
  cpu::exp(count, weights, weights);
  double total = 0;
  for (Index c = 0; c < count; ++c) total += static_cast<double>(weights[c]);
  const T inverse = static_cast<T>(1 / total);
  for (Index c = 0; c < count; ++c) weights[c] *= inverse;
  return std::log(total) + static_cast<double>(largest);
}

}  // namespace

template <class T>
void run(cpu::Stream& stream, const Distillation<T>& op) {
  const Index vocabulary = op.logits.cols;
  stream.pool().split(op.logits.rows, [&](Index begin, Index end, int thread) {
    cpu::Scratch scratch(stream, thread);
    T* student = scratch.take<T>(vocabulary);
    T* teacher = scratch.take<T>(vocabulary);
    for (Index r = begin; r < end; ++r) {
      const auto target = op.targets[r];
      T* d_logits = op.d_logits.row(r);
      if (target == kIgnoredTarget) {
        op.label_loss[r] = op.divergence[r] = 0;
        std::fill_n(d_logits, vocabulary, T(0));
        continue;
      }
      const T *student_logits = op.logits.row(r), *teacher_logits = op.teacher.row(r);
      const double student_sum = softmax(student_logits, vocabulary, student);
      const double teacher_sum = softmax(teacher_logits, vocabulary, teacher);
      const double label = student_sum - static_cast<double>(student_logits[target]);
      double divergence = 0, signs = 0;
      if (op.kl != 0) {
        for (Index c = 0; c < vocabulary; ++c) {
          divergence += static_cast<double>(teacher[c]) * static_cast<double>(teacher_logits[c] - student_logits[c]);
        }
        divergence += student_sum - teacher_sum;
      } else {
        for (Index c = 0; c < vocabulary; ++c) {
          const auto gap = static_cast<double>(student[c] - teacher[c]);
          divergence += std::abs(gap) / 2;
          signs += static_cast<double>(student[c]) * (gap > 0 ? 0.5 : gap < 0 ? -0.5 : 0.0);
        }
      }
      op.label_loss[r] = static_cast<T>(label);
      op.divergence[r] = static_cast<T>(divergence);
      const T on_labels = static_cast<T>(op.scale * op.label), on_kl = static_cast<T>(op.scale * op.kl),
              on_tv = static_cast<T>(op.scale * op.tv);
      const T mean = static_cast<T>(signs);
      for (Index c = 0; c < vocabulary; ++c) {
        const T gap = student[c] - teacher[c];
        T gradient = on_labels * student[c] + on_kl * gap;
        if (on_tv != T(0)) gradient += on_tv * student[c] * ((gap > 0 ? T(0.5) : gap < 0 ? T(-0.5) : T(0)) - mean);
        d_logits[c] = gradient;
      }
      d_logits[target] -= on_labels;
    }
  });
}

template void run(cpu::Stream&, const Distillation<float>&);
template void run(cpu::Stream&, const Distillation<double>&);

}  // namespace essh
