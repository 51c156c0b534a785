#pragma once
#include "essh/device/stream.h"

namespace essh {

// Losses of a student p against labels and a fixed teacher t, row by row:
//   label * CE(p, target) + kl * KL(t || p) + tv * TV(t, p),  TV = 1/2 sum |t - p|
// d_logits is the gradient of their sum, times `scale`, with respect to the student's logits. Rows with an ignored
// target contribute zero.
template <class T>
struct Distillation {
  Matrix<const T> logits;   // tokens x vocabulary
  Matrix<const T> teacher;  // tokens x vocabulary
  Vector<const std::int32_t> targets;
  Vector<Wide<T>> label_loss;  // (=) CE
  Vector<Wide<T>> divergence;  // (=) KL, or TV when kl is 0
  Matrix<T> d_logits;          // (=) may alias logits or teacher
  double label = 1, kl = 0, tv = 0;
  double scale = 1;
};

template <class T>
void run(cpu::Stream&, const Distillation<T>&);
template <class T>
void run(cuda::Stream&, const Distillation<T>&);

}  // namespace essh
