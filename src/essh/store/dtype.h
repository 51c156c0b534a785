#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "essh/base/bfloat16.h"

namespace essh {

// The element types of safetensors files, in the order of the reference implementation, by which writers sort tensors.
enum class DType : std::uint8_t { BOOL, U8, I8, F8_E5M2, F8_E4M3, I16, U16, F16, BF16, I32, U32, F32, F64, I64, U64 };
inline constexpr std::size_t kDTypeCount = 15;

// Bytes of one element.
std::size_t dtype_size(DType dtype);
// Name in files, such as "BF16".
std::string_view dtype_name(DType dtype);
std::optional<DType> dtype_from_name(std::string_view name);
// F16, BF16, F32 and F64: the types that decode_elements and encode_elements convert.
bool is_convertible(DType dtype);

// values[i] = element i of `stored`, rounded to nearest even. T is float, double or BFloat16; `dtype` is convertible
// and stored.size() == values.size() * dtype_size(dtype). `stored` need not be aligned.
template <class T>
void decode_elements(DType dtype, std::span<const std::byte> stored, std::span<T> values);
// The inverse, with the same rounding.
template <class T>
void encode_elements(DType dtype, std::span<const T> values, std::span<std::byte> stored);

}  // namespace essh
