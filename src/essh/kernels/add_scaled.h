#pragma once
#include "essh/device/stream.h"

namespace essh {

// sum = x + factor * y, rounded once to float32 and then to E. The sum may be x.
template <class E>
struct AddScaled {
  Vector<const float> x, y;
  float factor;
  Vector<E> sum;  // (=)
};

void run(cpu::Stream&, const AddScaled<float>&);
void run(cuda::Stream&, const AddScaled<float>&);
void run(cuda::Stream&, const AddScaled<BFloat16>&);

}  // namespace essh
