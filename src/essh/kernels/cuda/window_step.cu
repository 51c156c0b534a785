#include <cmath>

#include "essh/kernels/cuda/row_shares.cuh"
#include "essh/kernels/window_step.h"

namespace essh {
namespace {

using cuda::device::LanePart;

template <class T>
struct StepOperands {
  Matrix<const T> q, k, v;
  Matrix<T> keys, values, out;
  const Index* positions;
};

// One block for each share of each head of each sequence. The new row is read from where it stands, never from the
// ring, so no block waits for the one that puts it there.
template <class T, int kLanes, bool kAligned>
__global__ void __launch_bounds__(cuda::device::kRowThreads)
    attend_ring(int heads, int head_dim, int window, float scale, StepOperands<T> x, cuda::device::Shares shares) {
  using Part = LanePart<T, kAligned>;
  const int item = static_cast<int>(blockIdx.x) / shares.splits, split = static_cast<int>(blockIdx.x) % shares.splits;
  const int sequence = item / heads, column = item % heads * head_dim;
  const Index width = static_cast<Index>(heads) * head_dim, position = x.positions[sequence];
  const int slot = static_cast<int>(position % window),
            filled = position < window ? static_cast<int>(position) + 1 : window;
  const auto share = cuda::device::share_of({0, filled}, split, shares.splits, cuda::device::kRowThreads / kLanes);
  T* keys = x.keys.row(sequence) + column;
  T* values = x.values.row(sequence) + column;
  const T* new_key = x.k.row(sequence) + column;
  const T* new_value = x.v.row(sequence) + column;
  if (share.begin <= slot && slot < share.end && threadIdx.x < kLanes) {
    const int lane = static_cast<int>(threadIdx.x);
    Part::load(new_key, lane, head_dim).store_to(keys + slot * width, lane, head_dim);
    Part::load(new_value, lane, head_dim).store_to(values + slot * width, lane, head_dim);
  }
  auto sum = cuda::device::attend_row<T, kLanes, kAligned>(
      x.q.row(sequence) + column, head_dim, scale, share.begin, share.end,
      [&](int r, int lane, Part& key, Part& value) {
        key = Part::load(r == slot ? new_key : keys + r * width, lane, head_dim);
        value = Part::load(r == slot ? new_value : values + r * width, lane, head_dim);
      });
  if (cuda::device::gather(sum, shares, item, split, head_dim))
    cuda::device::write_row<T>(sum, head_dim, x.out.row(sequence) + column, nullptr);
}

}  // namespace

template <class T>
void run(cuda::Stream& stream, const WindowStep<T>& op) {
  cuda::check_head_dim(op.head_dim);
  const Index heads = op.q.cols / op.head_dim, items = op.q.rows * heads;
  if (items == 0) return;
  cuda::Scratch scratch(stream);
  const auto shares = cuda::share_rows(stream, scratch, items, op.window, op.head_dim);
  const StepOperands<T> x{op.q, op.k, op.v, op.keys, op.values, op.out, op.positions.data};
  const bool aligned = cuda::all_aligned(op.q, op.k, op.v, op.keys, op.values);
  cuda::with_lanes<T>(op.head_dim, aligned, [&]<int kLanes, bool kAligned>() {
    cuda::launch(stream, "window step",
                 {.grid = dim3(static_cast<unsigned>(items * shares.splits)), .block = dim3(cuda::device::kRowThreads)},
                 attend_ring<T, kLanes, kAligned>, static_cast<int>(heads), static_cast<int>(op.head_dim),
                 static_cast<int>(op.window), static_cast<float>(1 / std::sqrt(static_cast<double>(op.head_dim))), x,
                 shares);
  });
}

template void run(cuda::Stream&, const WindowStep<BFloat16>&);
template void run(cuda::Stream&, const WindowStep<float>&);

}  // namespace essh
