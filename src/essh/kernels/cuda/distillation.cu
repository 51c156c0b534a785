#include "essh/device/cuda/launch.cuh"
#include "essh/kernels/cross_entropy.h"
#include "essh/kernels/cuda/device/softmax.cuh"
#include "essh/kernels/cuda/device/vectors.cuh"
#include "essh/kernels/distillation.h"

namespace essh {
namespace {

constexpr int kDistillationThreads = 512;

__device__ float half_sign(float gap) {
  return gap > 0 ? 0.5f : gap < 0 ? -0.5f : 0.0f;
}

template <int N, class T>
__global__ void __launch_bounds__(kDistillationThreads) distillation_rows(Distillation<T> op) {
  __shared__ float shared[kDistillationThreads / 32];
  const Index row = op.logits.rows - 1 - blockIdx.x, count = op.logits.cols;
  const std::int32_t target = op.targets[row];
  const T *student = op.logits.row(row), *teacher = op.teacher.row(row);
  T* d_logits = op.d_logits.row(row);
  if (target == kIgnoredTarget) {
    if (threadIdx.x == 0) op.label_loss[row] = op.divergence[row] = 0;
    const float zeros[N] = {};
    for (Index c = Index{threadIdx.x} * N; c < count; c += kDistillationThreads * N) cuda::store(d_logits + c, zeros);
    return;
  }
  const auto p = cuda::row_softmax<N>(student, count, shared), t = cuda::row_softmax<N>(teacher, count, shared);
  const float p_factor = 1.0f / p.sum, t_factor = 1.0f / t.sum;
  const float p_log = logf(p.sum) + p.largest, t_log = logf(t.sum) + t.largest;
  const auto each = [&](const auto& body) {
    for (Index c = Index{threadIdx.x} * N; c < count; c += kDistillationThreads * N) {
      float x[N], y[N];
      cuda::load(student + c, x);
      cuda::load(teacher + c, y);
      body(c, x, y);
    }
  };
  const auto student_at = [&](float x) { return __expf(x - p.largest) * p_factor; };
  const auto teacher_at = [&](float y) { return __expf(y - t.largest) * t_factor; };
  float divergence = 0, signs = 0;
  const bool variation = op.kl == 0;
  each([&](Index, const float(&x)[N], const float(&y)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (variation) {
        const float ours = student_at(x[i]), gap = ours - teacher_at(y[i]);
        divergence += 0.5f * fabsf(gap);
        signs += ours * half_sign(gap);
      } else {
        divergence += teacher_at(y[i]) * ((y[i] - t_log) - (x[i] - p_log));
      }
    }
  });
  divergence = cuda::block_sum(divergence, shared);
  if (op.tv != 0) signs = cuda::block_sum(signs, shared);
  if (threadIdx.x == 0) {
    op.label_loss[row] = p_log - cuda::widen(student[target]);
    op.divergence[row] = divergence;
  }
  __syncthreads();  // the target's logit is read before it may be overwritten
  const float on_labels = static_cast<float>(op.scale * op.label), on_kl = static_cast<float>(op.scale * op.kl),
              on_tv = static_cast<float>(op.scale * op.tv);
  each([&](Index c, float(&x)[N], const float(&y)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float ours = student_at(x[i]), gap = ours - teacher_at(y[i]);
      float slope = on_labels * (ours - (c + i == target ? 1.0f : 0.0f)) + on_kl * gap;
      if (on_tv != 0) slope += on_tv * ours * (half_sign(gap) - signs);
      x[i] = slope;
    }
    cuda::store(d_logits + c, x);
  });
}

}  // namespace

template <class T>
void run(cuda::Stream& stream, const Distillation<T>& op) {
  cuda::with_width<T>(
      [&]<int N>() {
        cuda::launch(stream, "distillation", {static_cast<unsigned>(op.logits.rows), kDistillationThreads},
                     distillation_rows<N, T>, op);
      },
      op.logits, op.teacher, op.d_logits);
}

template void run(cuda::Stream&, const Distillation<float>&);
template void run(cuda::Stream&, const Distillation<BFloat16>&);

}  // namespace essh
