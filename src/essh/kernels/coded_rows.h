#pragma once
#include "essh/base/e4m3.h"
#include "essh/device/stream.h"

namespace essh {

// Rows of keys or values in eight bits. A row of heads x head_dim numbers is stored as the E4M3 codes of its elements,
// then one bf16 scale per head (its largest magnitude over 448, rounded up), then zeros up to a
// multiple of 16 bytes. An element is
// scale * code, within a sixteenth of itself and 2^-10 of the scale.
constexpr Index coded_row_bytes(Index columns, Index head_dim) {
  return (columns + columns / head_dim * 2 + 15) / 16 * 16;
}

// to = the rows of `from`, one after the other.
template <class T>
struct StoreCodedRows {
  Index head_dim;
  Matrix<const T> from;
  std::byte* to;  // (=) rows of coded_row_bytes, aligned to 16 bytes
};

// to = rows stored by StoreCodedRows, rounded to T.
template <class T>
struct LoadCodedRows {
  Index head_dim;
  const std::byte* from;
  Matrix<T> to;  // (=)
};

template <class T>
void run(cpu::Stream&, const StoreCodedRows<T>&);
template <class T>
void run(cuda::Stream&, const StoreCodedRows<T>&);
template <class T>
void run(cpu::Stream&, const LoadCodedRows<T>&);
template <class T>
void run(cuda::Stream&, const LoadCodedRows<T>&);

}  // namespace essh
