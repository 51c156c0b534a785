#include "essh/store/dtype.h"

#include <bit>
#include <cmath>
#include <concepts>
#include <cstring>

#include "essh/base/error.h"

namespace essh {
namespace {

static_assert(std::endian::native == std::endian::little,
              "safetensors files are little-endian and are copied as they are");

struct DTypeFacts {
  std::string_view name;
  std::size_t size;
};

constexpr std::array<DTypeFacts, kDTypeCount> kFacts = {{{"BOOL", 1},
                                                         {"U8", 1},
                                                         {"I8", 1},
                                                         {"F8_E5M2", 1},
                                                         {"F8_E4M3", 1},
                                                         {"I16", 2},
                                                         {"U16", 2},
                                                         {"F16", 2},
                                                         {"BF16", 2},
                                                         {"I32", 4},
                                                         {"U32", 4},
                                                         {"F32", 4},
                                                         {"F64", 8},
                                                         {"I64", 8},
                                                         {"U64", 8}}};

// Rounds to odd, so that a second rounding to a shorter type equals a single rounding.
float shortened(double value) {
  const auto nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || !std::isfinite(value)) return nearest;
  auto bits = std::bit_cast<std::uint32_t>(nearest);
  if (std::abs(static_cast<double>(nearest)) > std::abs(value)) --bits;
  return std::bit_cast<float>(bits | 1u);
}

template <class To, class From>
To convert(From value) {
  if constexpr (std::same_as<To, From>) {
    return value;
  } else if constexpr (!std::floating_point<From>) {
    return convert<To>(static_cast<float>(value));
  } else if constexpr (!std::floating_point<To> && std::same_as<From, double>) {
    return To(shortened(value));
  } else {
    return static_cast<To>(value);
  }
}

template <class Stored, class T>
void decode(const std::byte* from, std::span<T> values) {
  if constexpr (std::same_as<Stored, T>) {
    if (!values.empty()) std::memcpy(values.data(), from, values.size_bytes());
  } else {
    for (std::size_t i = 0; i < values.size(); ++i) {
      Stored element;
      std::memcpy(&element, from + i * sizeof(Stored), sizeof(Stored));
      values[i] = convert<T>(element);
    }
  }
}

template <class Stored, class T>
void encode(std::span<const T> values, std::byte* to) {
  if constexpr (std::same_as<Stored, T>) {
    if (!values.empty()) std::memcpy(to, values.data(), values.size_bytes());
  } else {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto element = convert<Stored>(values[i]);
      std::memcpy(to + i * sizeof(Stored), &element, sizeof(Stored));
    }
  }
}

}  // namespace

std::size_t dtype_size(DType dtype) {
  return kFacts[static_cast<std::size_t>(dtype)].size;
}

std::string_view dtype_name(DType dtype) {
  return kFacts[static_cast<std::size_t>(dtype)].name;
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kFacts.size(); ++i) {
    if (kFacts[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

bool is_convertible(DType dtype) {
  return dtype == DType::F32 || dtype == DType::BF16 || dtype == DType::F16 || dtype == DType::F64;
}

template <class T>
void decode_elements(DType dtype, std::span<const std::byte> stored, std::span<T> values) {
  ESSH_ASSERT(stored.size() == values.size() * dtype_size(dtype));
  switch (dtype) {
    case DType::F32:
      return decode<float>(stored.data(), values);
    case DType::BF16:
      return decode<BFloat16>(stored.data(), values);
    case DType::F16:
      return decode<Float16>(stored.data(), values);
    case DType::F64:
      return decode<double>(stored.data(), values);
    default:
      ESSH_ASSERT(is_convertible(dtype));
  }
}

template <class T>
void encode_elements(DType dtype, std::span<const T> values, std::span<std::byte> stored) {
  ESSH_ASSERT(stored.size() == values.size() * dtype_size(dtype));
  switch (dtype) {
    case DType::F32:
      return encode<float>(values, stored.data());
    case DType::BF16:
      return encode<BFloat16>(values, stored.data());
    case DType::F16:
      return encode<Float16>(values, stored.data());
    case DType::F64:
      return encode<double>(values, stored.data());
    default:
      ESSH_ASSERT(is_convertible(dtype));
  }
}

template void decode_elements(DType, std::span<const std::byte>, std::span<float>);
template void decode_elements(DType, std::span<const std::byte>, std::span<double>);
template void decode_elements(DType, std::span<const std::byte>, std::span<BFloat16>);
template void encode_elements(DType, std::span<const float>, std::span<std::byte>);
template void encode_elements(DType, std::span<const double>, std::span<std::byte>);
template void encode_elements(DType, std::span<const BFloat16>, std::span<std::byte>);

}  // namespace essh
