#include <cmath>

#include "essh/device/cuda/launch.cuh"
#include "essh/kernels/adamw.h"
#include "essh/kernels/cuda/pack.cuh"

namespace essh {
namespace {

constexpr int kThreads = 256;

struct Factors {
  float rate, beta1, beta2, eps, decay, clip, first_scale, second_scale;
};

__device__ void update(const Factors& f, float gradient, float& first, float& second, float& weight) {
  const float g = f.clip * gradient;
  first = f.beta1 * first + (1 - f.beta1) * g;
  second = f.beta2 * second + (1 - f.beta2) * g * g;
  weight -= f.rate * (first * f.first_scale) / (sqrtf(second * f.second_scale) + f.eps) + f.decay * weight;
}

__global__ void update_vectors(Factors f, const float4* gradient, float4* first, float4* second, float4* weight,
                               uint2* rounded, Index vectors) {
  const Index i = Index{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= vectors) return;
  const float4 g = __ldcs(gradient + i);
  float4 m = __ldcs(first + i), v = __ldcs(second + i), w = __ldcs(weight + i);
  update(f, g.x, m.x, v.x, w.x);
  update(f, g.y, m.y, v.y, w.y);
  update(f, g.z, m.z, v.z, w.z);
  update(f, g.w, m.w, v.w, w.w);
  __stcs(first + i, m);
  __stcs(second + i, v);
  __stcs(weight + i, w);
  if (rounded != nullptr) rounded[i] = cuda::rounded(w);
}

__global__ void update_elements(Factors f, const float* gradient, float* first, float* second, float* weight,
                                std::uint16_t* rounded, Index size) {
  const Index i = Index{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= size) return;
  update(f, gradient[i], first[i], second[i], weight[i]);
  if (rounded != nullptr) rounded[i] = cuda::rounded(weight[i]);
}

}  // namespace

template <class W>
void run(cuda::Stream& stream, const AdamW<W>& op) {
  const auto bias = [&](double beta) {
    return static_cast<float>(1 / (1 - std::pow(beta, static_cast<double>(op.step))));
  };
  const Factors factors{static_cast<float>(op.rate),
                        static_cast<float>(op.beta1),
                        static_cast<float>(op.beta2),
                        static_cast<float>(op.eps),
                        static_cast<float>(op.rate * op.decay),
                        static_cast<float>(op.clip),
                        bias(op.beta1),
                        bias(op.beta2)};
  const bool aligned = cuda::is_aligned(op.gradient.data, 16) && cuda::is_aligned(op.first.data, 16) &&
                       cuda::is_aligned(op.second.data, 16) && cuda::is_aligned(op.weight.data, 16) &&
                       cuda::is_aligned(op.rounded.data, 8);
  const Index vectors = aligned ? op.weight.size / 4 : 0, done = 4 * vectors, rest = op.weight.size - done;
  auto* const rounded = reinterpret_cast<std::uint16_t*>(op.rounded.data);
  cuda::launch(stream, "adamw", {dim3(cuda::blocks_for(vectors, kThreads)), dim3(kThreads)}, update_vectors, factors,
               reinterpret_cast<const float4*>(op.gradient.data), reinterpret_cast<float4*>(op.first.data),
               reinterpret_cast<float4*>(op.second.data), reinterpret_cast<float4*>(op.weight.data),
               reinterpret_cast<uint2*>(rounded), vectors);
  cuda::launch(stream, "adamw", {dim3(cuda::blocks_for(rest, kThreads)), dim3(kThreads)}, update_elements, factors,
               op.gradient.data + done, op.first.data + done, op.second.data + done, op.weight.data + done,
               rounded == nullptr ? nullptr : rounded + done, rest);
}

template void run(cuda::Stream&, const AdamW<float>&);

}  // namespace essh
