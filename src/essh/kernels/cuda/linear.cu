#include <vector>

#include "essh/device/cuda/launch.cuh"
#include "essh/kernels/cuda/few_row_product.h"
#include "essh/kernels/cuda/matmul_plans.h"
#include "essh/kernels/linear.h"

namespace essh {
namespace {

// RowBits::Alone: rows are multiplied in blocks of this size, the last one padded, so that cuBLASLt uses the same
// algorithm for every row. Its kernels do not mix rows.
constexpr Index kAloneRows = 64;
constexpr int kLinearThreads = 256;
constexpr Index kAlignment = 16;  // bytes

template <class T>
constexpr cuda::MatmulType type_of() {
  return std::is_same_v<T, BFloat16> ? cuda::MatmulType::BFloat16 : cuda::MatmulType::Float32;
}

template <class T>
std::vector<Matrix<const T>> factors(std::span<const Weight> weights, Index inner) {
  std::vector<Matrix<const T>> all;
  for (const Weight& weight : weights) {
    if (weight.format != format_of<T>())
      fail(ErrorKind::Unsupported,
           "a linear map of {} with weights in {} does not run on CUDA; store the weights as {}",
           traits(format_of<T>()).name, traits(weight.format).name, traits(format_of<T>()).name);
    ESSH_ASSERT(weight.cols == inner);
    if (weight.rows > 0) all.push_back(weight.as<T>());
  }
  return all;
}

// y = scale * [x W1^T, x W2^T, ...] + addend; column-major, y^T = W x^T.
template <class T, class Out>
void multiply(cuda::Stream& stream, Matrix<const T> x, std::span<const Matrix<const T>> weights, double scale,
              Matrix<const Out> addend, Matrix<Out> y, bool rows_vary = false) {
  auto& plans = stream.attachment<cuda::MatmulPlans>();
  const bool adds = !addend.empty();
  const Matrix<const Out> start = adds ? addend : Matrix<const Out>(y);
  Index column = 0;
  for (const auto& weight : weights) {
    plans.multiply({.input = type_of<T>(),
                    .output = type_of<Out>(),
                    .left = {weight.data, weight.stride, true},
                    .right = {x.data, x.stride, false},
                    .rows = weight.rows,
                    .columns = x.rows,
                    .inner = x.cols,
                    .alpha = static_cast<float>(scale),
                    .beta = adds ? 1.0f : 0.0f,
                    .addend = start.data + column,
                    .addend_stride = start.stride,
                    .result = y.data + column,
                    .result_stride = y.stride,
                    .columns_vary = rows_vary});
    column += weight.rows;
  }
}

// to = from, zero in the rows below; no-op for an empty `from`.
template <class T>
__device__ void copy_row(Matrix<const T> from, Matrix<T> to, Index row) {
  if (from.empty()) return;
  for (Index c = Index{blockIdx.x} * blockDim.x + threadIdx.x; c < to.cols; c += Index{gridDim.x} * blockDim.x)
    to(row, c) = row < from.rows ? from(row, c) : T{};
}
template <class T, class Out>
__global__ void pad_rows(Matrix<const T> x, Matrix<T> padded, Matrix<const Out> addend, Matrix<Out> sums) {
  cuda::after_previous();
  copy_row(x, padded, blockIdx.y);
  copy_row(addend, sums, blockIdx.y);
}
template <class Out>
__global__ void take_rows(Matrix<const Out> sums, Matrix<Out> y) {
  cuda::after_previous();
  copy_row(sums, y, blockIdx.y);
}

dim3 grid_for(Index rows, Index columns) {
  return {std::min(cuda::blocks_for(columns, kLinearThreads), 64u), static_cast<unsigned>(rows)};
}

// Every block goes through scratch, even a full one: a separate addend or another alignment may change bits.
template <class T, class Out>
void multiply_alone(cuda::Stream& stream, const Linear<T, Out>& op, std::span<const Matrix<const T>> weights) {
  cuda::Scratch scratch(stream);
  const auto block = [&]<class E>(Index cols) {
    constexpr Index kUnit = kAlignment / static_cast<Index>(sizeof(E));
    const Index stride = (cols + kUnit - 1) / kUnit * kUnit;
    return Matrix<E>{scratch.take<E>(kAloneRows * stride), kAloneRows, cols, stride};
  };
  const auto padded = block.template operator()<T>(op.x.cols);
  const auto sums = block.template operator()<Out>(op.y.cols);
  for (Index first = 0; first < op.x.rows; first += kAloneRows) {
    const Index rows = std::min(kAloneRows, op.x.rows - first);
    const auto addend = op.addend.empty() ? op.addend : op.addend.middle(first, rows);
    cuda::launch(stream, "pad rows",
                 {.grid = grid_for(kAloneRows, std::max(op.x.cols, op.y.cols)), .block = kLinearThreads, .early = true},
                 pad_rows<T, Out>, op.x.middle(first, rows), padded, addend, sums);
    multiply<T, Out>(stream, padded, weights, op.scale, addend.empty() ? addend : Matrix<const Out>(sums), sums);
    cuda::launch(stream, "take rows", {.grid = grid_for(rows, op.y.cols), .block = kLinearThreads, .early = true},
                 take_rows<Out>, Matrix<const Out>(sums.top(rows)), op.y.middle(first, rows));
  }
}

}  // namespace

template <class Out>
bool cuda::multiply_few_rows(Stream& stream, const Linear<BFloat16, Out>& op, FewRowProduct<Out> of) {
  if (op.bits != RowBits::Free || op.weights.size() != 1 || op.weights[0].format != Format::BF16) return false;
  of.weight = op.weights[0].template as<BFloat16>();
  of.y = op.y;
  of.scale = static_cast<float>(op.scale);
  of.addend = op.addend;
  of.next = op.next;
  return multiply_few_rows(stream, of);
}
template bool cuda::multiply_few_rows(Stream&, const Linear<BFloat16>&, FewRowProduct<BFloat16>);

template <class T, class Out>
void run(cuda::Stream& stream, const Linear<T, Out>& op) {
  Index outputs = 0;
  for (const Weight& weight : op.weights) outputs += weight.rows;
  ESSH_ASSERT(op.y.rows == op.x.rows && op.y.cols == outputs);
  const auto weights = factors<T>(op.weights, op.x.cols);
  if (op.y.rows == 0 || outputs == 0) return;
  if constexpr (sizeof(T) == 2) {
    if (cuda::multiply_few_rows(stream, op, cuda::FewRowProduct<Out>{.x = op.x})) return;
  }
  if (op.bits == RowBits::Alone)
    multiply_alone<T, Out>(stream, op, weights);
  else
    multiply<T, Out>(stream, op.x, weights, op.scale, op.addend, op.y, op.bits == RowBits::Ranged);
}

template void run(cuda::Stream&, const Linear<float>&);
template void run(cuda::Stream&, const Linear<BFloat16>&);
template void run(cuda::Stream&, const Linear<BFloat16, float>&);

}  // namespace essh
