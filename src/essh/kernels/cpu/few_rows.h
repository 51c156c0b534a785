#pragma once
#include <span>

#include "essh/device/cpu/stream.h"
#include "essh/kernels/cpu/product_result.h"
#include "essh/tensor/weight.h"

namespace essh::cpu {

// Up to this many rows, packing a weight costs more than it saves.
#ifdef __aarch64__
inline constexpr Index kFewRows = 16;
#else
inline constexpr Index kFewRows = 32;
#endif

// result = x times the weights' transposes, concatenated. Reads each weight once, each thread a range of its
// rows, without a packed copy. Every sum is one chain of fused multiply-adds in the order of the inner index.
template <class T>
void few_rows(Stream& stream, Matrix<const T> x, std::span<const Weight> weights, const ProductResult<T>& result);

}  // namespace essh::cpu
