#pragma once
#include "essh/kernels/gated_linear.h"
#include "essh/kernels/rms_norm.h"

namespace essh {

// A linear map of normalised rows: linear.x is norm.y, which is room for them and may hold anything afterwards.
template <class T, class X = T>
struct NormedLinear {
  RmsNormForward<T, X> norm;
  Linear<T> linear;
  NextNorm<T> begun = {};  // if begun.parts is not 0: this norm as the kernel before has begun it; its y is norm.y
};
template <class T, class X = T>
struct NormedGatedLinear {
  RmsNormForward<T, X> norm;
  GatedLinear<T> gated;
  NextNorm<T> begun = {};
};

template <class T, class X>
void run(cpu::Stream&, const NormedLinear<T, X>&);
template <class T, class X>
void run(cuda::Stream&, const NormedLinear<T, X>&);
template <class T, class X>
void run(cpu::Stream&, const NormedGatedLinear<T, X>&);
template <class T, class X>
void run(cuda::Stream&, const NormedGatedLinear<T, X>&);

// The unfused versions: the norm, then the product.
template <class T, class X, class Stream>
void run_parts(Stream& stream, const NormedLinear<T, X>& op) {
  run(stream, op.norm);
  run(stream, op.linear);
}
template <class T, class X, class Stream>
void run_parts(Stream& stream, const NormedGatedLinear<T, X>& op) {
  run(stream, op.norm);
  run(stream, op.gated);
}

}  // namespace essh
