#pragma once
#include "essh/tensor/matrix.h"

namespace essh {

// How the elements of a weight are stored. A new format is one row of kFormats and its kernels.
enum class Format : std::uint8_t { F64, F32, BF16, F16 };

struct FormatTraits {
  const char* name;
  Index block;        // elements per block
  Index block_bytes;  // bytes of one block
};
inline constexpr FormatTraits kFormats[] = {
    {"float64", 1, 8}, {"float32", 1, 4}, {"bfloat16", 1, 2}, {"float16", 1, 2}};
constexpr const FormatTraits& traits(Format format) {
  return kFormats[static_cast<std::size_t>(format)];
}
constexpr Index stored_bytes(Format format, Index elements) {
  return elements / traits(format).block * traits(format).block_bytes;
}

// The format whose elements are T.
template <class T>
constexpr Format format_of() {
  using V = std::remove_const_t<T>;
  static_assert(std::is_same_v<V, double> || std::is_same_v<V, float> || std::is_same_v<V, BFloat16>);
  return std::is_same_v<V, double> ? Format::F64 : std::is_same_v<V, float> ? Format::F32 : Format::BF16;
}

// A non-owning handle of a stored weight: rows x cols, row-major, `stride` elements from row to row; `scales` for
// formats that have them. Prefixes of rows and columns are weights too.
struct Weight {
  Format format = Format::F32;
  const void* data = nullptr;
  const void* scales = nullptr;
  Index rows = 0, cols = 0, stride = 0;

  Weight() = default;
  Weight(Format stored, const void* elements, Index row_count, Index col_count)
      : format(stored), data(elements), rows(row_count), cols(col_count), stride(col_count) {}
  template <class T>
  Weight(Matrix<T> view)
      : format(format_of<T>()), data(view.data), rows(view.rows), cols(view.cols), stride(view.stride) {}

  const std::byte* row(Index r) const { return static_cast<const std::byte*>(data) + stored_bytes(format, r * stride); }
  Weight top(Index count) const {
    Weight part = *this;
    part.rows = count;
    return part;
  }
  Weight left(Index count) const {
    Weight part = *this;
    part.cols = count;
    return part;
  }
  bool is_dense() const { return stride == cols; }
  Index bytes() const { return stored_bytes(format, rows * cols); }
  // The elements; the format must store T.
  template <class T>
  Matrix<const T> as() const {
    ESSH_ASSERT(format == format_of<T>());
    return {static_cast<const T*>(data), rows, cols, stride};
  }
};

}  // namespace essh
