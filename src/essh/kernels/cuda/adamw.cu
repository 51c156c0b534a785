#include <cmath>

#include "essh/device/cuda/launch.cuh"
#include "essh/kernels/adamw.h"
#include "essh/kernels/cuda/device/vectors.cuh"

namespace essh {
namespace {

constexpr int kAdamwThreads = 256;

struct Factors {
  float rate, beta1, beta2, eps, decay, clip, first_scale, second_scale;
};
struct Operands {
  float *weight, *first, *second;
  const float* gradient;
  BFloat16* rounded;  // may be null
};

// N consecutive elements per thread; no load or store depends on another thread.
template <int N>
__global__ void adamw_update(Factors f, Operands op, Index packs) {
  const Index i = N * (Index{blockIdx.x} * kAdamwThreads + threadIdx.x);
  if (i >= N * packs) return;
  float weight[N], first[N], second[N], gradient[N];
  cuda::load<N>(op.gradient + i, gradient);
  cuda::load<N>(op.first + i, first);
  cuda::load<N>(op.second + i, second);
  cuda::load<N>(op.weight + i, weight);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const float g = f.clip * gradient[j];
    first[j] = f.beta1 * first[j] + (1 - f.beta1) * g;
    second[j] = f.beta2 * second[j] + (1 - f.beta2) * g * g;
    weight[j] -=
        f.rate * (first[j] * f.first_scale) / (sqrtf(second[j] * f.second_scale) + f.eps) + f.decay * weight[j];
  }
  cuda::store<N>(op.first + i, first);
  cuda::store<N>(op.second + i, second);
  cuda::store<N>(op.weight + i, weight);
  if (op.rounded != nullptr) cuda::store<N>(op.rounded + i, weight);
}

}  // namespace

template <class W>
void run(cuda::Stream& stream, const AdamW<W>& op) {
  const auto scale = [&](double beta) {
    return static_cast<float>(1 / (1 - std::pow(beta, static_cast<double>(op.step))));
  };
  const Factors factors{static_cast<float>(op.rate),
                        static_cast<float>(op.beta1),
                        static_cast<float>(op.beta2),
                        static_cast<float>(op.eps),
                        static_cast<float>(op.rate * op.decay),
                        static_cast<float>(op.clip),
                        scale(op.beta1),
                        scale(op.beta2)};
  const bool wide = cuda::aligned(op.weight, 4) && cuda::aligned(op.first, 4) && cuda::aligned(op.second, 4) &&
                    cuda::aligned(op.gradient, 4) && cuda::aligned(op.rounded, 4);
  const Index packs = wide ? op.weight.size / 4 : 0, done = 4 * packs, rest = op.weight.size - done;
  cuda::launch(stream, "adamw", {dim3(cuda::blocks_for(packs, kAdamwThreads)), dim3(kAdamwThreads)}, adamw_update<4>,
               factors, Operands{op.weight.data, op.first.data, op.second.data, op.gradient.data, op.rounded.data},
               packs);
  cuda::launch(stream, "adamw", {dim3(cuda::blocks_for(rest, kAdamwThreads)), dim3(kAdamwThreads)}, adamw_update<1>,
               factors,
               Operands{op.weight.data + done, op.first.data + done, op.second.data + done, op.gradient.data + done,
                        op.rounded.empty() ? nullptr : op.rounded.data + done},
               rest);
}

template void run(cuda::Stream&, const AdamW<float>&);

}  // namespace essh
