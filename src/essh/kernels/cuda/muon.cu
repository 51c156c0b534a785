#include "essh/device/cuda/launch.cuh"
#include "essh/kernels/cuda/device/number.cuh"
#include "essh/kernels/muon.h"

namespace essh {
namespace {

constexpr int kMuonThreads = 256;

__device__ Index element() {
  return Index{blockIdx.x} * kMuonThreads + threadIdx.x;
}

__global__ void add_momentum(MuonMomentum<float> op, float beta, float clip) {
  const Index i = element();
  if (i >= op.momentum.size) return;
  const float g = (1 - beta) * (clip * op.gradient[i]);
  const float momentum = op.momentum[i] = beta * op.momentum[i] + g;
  op.direction[i] = beta * momentum + g;
}

template <class T>
__global__ void normalise(MuonNormalise<T> op) {
  const Index i = element();
  if (i >= op.from.size) return;
  const double squares = *op.squares;
  op.to[i] = cuda::narrow<T>(squares > 0 ? static_cast<float>(rsqrt(squares)) * op.from[i] : 0.0f);
}

template <class T>
__global__ void muon_update(MuonUpdate<T> op, float rate, float decay) {
  const Index i = element();
  if (i >= op.weight.size) return;
  const float weight = op.weight[i] - (rate * cuda::widen(op.direction[i]) + decay * op.weight[i]);
  op.weight[i] = weight;
  if (!op.rounded.empty()) op.rounded[i] = cuda::narrow<BFloat16>(weight);
}

cuda::Shape shape(Index elements) {
  return {dim3(cuda::blocks_for(elements, kMuonThreads)), dim3(kMuonThreads)};
}

}  // namespace

template <class W>
void run(cuda::Stream& stream, const MuonMomentum<W>& op) {
  cuda::launch(stream, "muon_momentum", shape(op.momentum.size), add_momentum, op, static_cast<float>(op.beta),
               static_cast<float>(op.clip));
}

template <class T>
void run(cuda::Stream& stream, const MuonNormalise<T>& op) {
  cuda::launch(stream, "muon_normalise", shape(op.from.size), normalise<T>, op);
}

template <class T>
void run(cuda::Stream& stream, const MuonUpdate<T>& op) {
  cuda::launch(stream, "muon_update", shape(op.weight.size), muon_update<T>, op, static_cast<float>(op.rate),
               static_cast<float>(op.rate * op.decay));
}

template void run(cuda::Stream&, const MuonMomentum<float>&);
template void run(cuda::Stream&, const MuonNormalise<float>&);
template void run(cuda::Stream&, const MuonNormalise<BFloat16>&);
template void run(cuda::Stream&, const MuonUpdate<float>&);
template void run(cuda::Stream&, const MuonUpdate<BFloat16>&);

}  // namespace essh
