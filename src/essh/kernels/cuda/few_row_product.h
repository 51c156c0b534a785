#pragma once
#include "essh/device/cuda/stream.h"
#include "essh/kernels/gated_linear.h"

namespace essh::cuda {

// y = scale * x W^T + addend, or with a second weight y = silu(x W^T) * (x U^T). Out is float or BFloat16.
template <class Out>
struct FewRowProduct {
  Matrix<const BFloat16> x;            // rows x inputs
  Matrix<const BFloat16> weight = {};  // outputs x inputs
  Matrix<const BFloat16> up = {};      // like weight, or empty
  Matrix<Out> y = {};                  // (=) rows x outputs
  float scale = 1;
  Matrix<const Out> addend = {};         // like y, may be y itself; empty means zero
  Vector<const std::int32_t> kept = {};  // of a gated product: columns kept in each row, the others are 0
  // A norm that was begun: column sums are the squares of each row, whose root mean with eps divides the row's product.
  Matrix<const float> squares = {};  // parts x rows; empty: nothing is divided
  float eps = 0;
  NextNorm<BFloat16>* next = nullptr;  // of y, as in Linear
};

// Whether the stream's device has these products and the stream allows them.
bool few_row_products(const Stream& stream);

// The product of a decoding step: as fast as the weights are read, and it begins to read them before the previous
// kernel has ended. False where there is none (other GPUs than sm_90, too many rows, unaligned operands), or if the
// stream does not allow it (Stream::own_products).
template <class Out>
bool multiply_few_rows(Stream& stream, const FewRowProduct<Out>& op);

// The same with weights, result and the rest from a linear map of one weight, or from a gated one; `of` says what is
// multiplied. False also where bits have to be those of other numbers of rows.
template <class Out>
bool multiply_few_rows(Stream& stream, const Linear<BFloat16, Out>& op, FewRowProduct<Out> of);
bool multiply_few_rows(Stream& stream, const GatedLinear<BFloat16>& op, FewRowProduct<BFloat16> of);

}  // namespace essh::cuda
