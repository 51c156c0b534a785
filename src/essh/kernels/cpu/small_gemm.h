#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "essh/kernels/cpu/vectors.h"
#include "essh/tensor/matrix.h"

// Products of matrices that fit in the cache, inside one thread: chunks of a scan, blocks of an attention.
namespace essh::cpu {

// A strided operand: a(i, k) = data[i * row + k * col], so transposing swaps the strides.
template <class T>
struct Strided {
  const T* data;
  Index row;
  Index col;
};

// Columns of a few rows one after the other: a(i, k) = data[k * rows of the tile + i].
template <class T>
struct Sliver {
  const T* data;
};

// Nonzero region of `a`: all, k <= i, or k >= i.
enum class Shape { Full, Lower, Upper };

// Whether a product accumulates into the result or replaces it.
enum class Into { Add, Set };

namespace detail {

// The register tile: eight rows of as many vectors as fit in the registers.
inline constexpr Index kTileRows = 8;
inline constexpr int kTileVectors = kManyRegisters ? 2 : 1;
template <class T>
inline constexpr Index kTileColumns = kTileVectors* kVectorBytes / static_cast<Index>(sizeof(T));

// A column of a sliver is read by few loads where products take one element of a vector. Read one by one, GCC loads all
// of them ahead, and sums have to leave the registers.
#if defined(__aarch64__)
inline constexpr bool kMultipliesLanes = true;
#else
inline constexpr bool kMultipliesLanes = false;
#endif

// c(i0..i0+Rows, j..j+N) += sum over k in [begin, end) of a(i, k) b(k, j), with N = Columns vectors of Bytes. With
// into = Into::Set, c is taken as zero. `a` is a Strided or a Sliver.
template <class T, int Rows, int Columns, int Bytes, Into into = Into::Add, class Left = Strided<T>>
inline __attribute__((always_inline)) void tile(Left a, const T* b, Index b_stride, T* c, Index c_stride, Index begin,
                                                Index end) {
  using V = Lanes<T, Bytes>;
  constexpr Index kWidth = Bytes / static_cast<Index>(sizeof(T));
  V sum[Rows][Columns];
  const auto each = [](const auto& body) __attribute__((always_inline)) {
    unrolled<Rows>([&](auto i) __attribute__((always_inline)) {
      unrolled<Columns>([&](auto j) __attribute__((always_inline)) { body(i(), j()); });
    });
  };
  each([&](int i, int j) __attribute__((always_inline)) {
    if constexpr (into == Into::Add)
      sum[i][j] = load<T, Bytes>(c + i * c_stride + j * kWidth);
    else
      sum[i][j] = V{};
  });
  const auto step = [&](Index k) __attribute__((always_inline)) {
    V right[Columns];
    unrolled<Columns>([&](auto j) __attribute__((always_inline)) {
      right[j()] = load<T, Bytes>(b + k * b_stride + j() * kWidth);
    });
    if constexpr (std::is_same_v<Left, Strided<T>>) {
      each([&](int i, int j) __attribute__((always_inline)) {
        sum[i][j] = multiply_add<T, Bytes>(a.data[i * a.row + k * a.col], right[j], sum[i][j]);
      });
    } else if constexpr (kMultipliesLanes && Rows % kWidth == 0) {
      unrolled<Rows / kWidth>([&](auto part) __attribute__((always_inline)) {
        const V left = load<T, Bytes>(a.data + k * Rows + part() * kWidth);
        unrolled<static_cast<int>(kWidth)>([&](auto lane) __attribute__((always_inline)) {
          constexpr int kRow = part() * static_cast<int>(kWidth) + lane();
          unrolled<Columns>([&](auto j) __attribute__((always_inline)) {
            sum[kRow][j()] = multiply_add_lane<lane(), T, Bytes>(left, right[j()], sum[kRow][j()]);
          });
        });
      });
    } else {
      each([&](int i, int j) __attribute__((always_inline)) {
        sum[i][j] = multiply_add_in_place<T, Bytes>(a.data[k * Rows + i], right[j], sum[i][j]);
      });
    }
  };
  Index k = begin;
  // On x86 GCC 12 keeps sums of the tile on the stack if it unrolls the loop itself.
  if constexpr (!std::is_same_v<Left, Strided<T>> && kMultipliesLanes) {
#pragma GCC unroll 4
    for (; k < end; ++k) step(k);
  } else if constexpr (!std::is_same_v<Left, Strided<T>>) {
    for (; k + 4 <= end; k += 4) unrolled<4>([&](auto next) __attribute__((always_inline)) { step(k + next()); });
  }
#pragma GCC unroll 1
  for (; k < end; ++k) step(k);
  each([&](int i, int j) __attribute__((always_inline)) { store<T, Bytes>(c + i * c_stride + j * kWidth, sum[i][j]); });
}

template <Into into, class T, int Rows>
inline void row_block(Strided<T> a, const T* b, Index b_stride, T* c, Index c_stride, Index columns, Index begin,
                      Index end) {
  Index j = 0;
  if constexpr (kTileVectors > 1) {
    for (; j + kTileColumns<T> <= columns; j += kTileColumns<T>)
      tile<T, Rows, kTileVectors, kVectorBytes, into>(a, b + j, b_stride, c + j, c_stride, begin, end);
  }
  for (; j + kLanes<T> <= columns; j += kLanes<T>)
    tile<T, Rows, 1, kVectorBytes, into>(a, b + j, b_stride, c + j, c_stride, begin, end);
  if constexpr (kVectorBytes >= 64) {
    for (; j + kLanes<T> / 2 <= columns; j += kLanes<T> / 2)
      tile<T, Rows, 1, kVectorBytes / 2, into>(a, b + j, b_stride, c + j, c_stride, begin, end);
  }
  if constexpr (kVectorBytes >= 32) {
    constexpr Index kFew = 16 / static_cast<Index>(sizeof(T));
    for (; j + kFew <= columns; j += kFew) tile<T, Rows, 1, 16, into>(a, b + j, b_stride, c + j, c_stride, begin, end);
  }
  if (j == columns) return;
  // The last few columns use padded copies: they too must go through vectors, because the scalar code may round
  // differently.
  constexpr Index kFew = 16 / static_cast<Index>(sizeof(T)), kPiece = 64;
  const Index rest = columns - j;
  T ends[Rows * kFew] = {}, piece[kPiece * kFew] = {};
  if constexpr (into == Into::Add) {
    for (int i = 0; i < Rows; ++i) std::copy_n(c + i * c_stride + j, rest, ends + i * kFew);
  }
  for (Index k = begin; k < end; k += kPiece) {
    const Index count = std::min(kPiece, end - k);
    for (Index n = 0; n < count; ++n) std::copy_n(b + (k + n) * b_stride + j, rest, piece + n * kFew);
    tile<T, Rows, 1, 16>({a.data + k * a.col, a.row, a.col}, piece, kFew, ends, kFew, 0, count);
  }
  for (int i = 0; i < Rows; ++i) std::copy_n(ends + i * kFew, rest, c + i * c_stride + j);
}

}  // namespace detail

// c (rows x columns) += or = a (rows x inner) * b (inner x columns). Every element is one chain of additions in the
// order of the inner index, wherever it stands. Elements of `a` outside `shape` must be zero, except in blocks of eight
// rows that lie outside entirely, which are not read.
template <Into into, class T>
void product(Index rows, Index columns, Index inner, Strided<T> a, const T* b, Index b_stride, T* c, Index c_stride,
             Shape shape = Shape::Full) {
  Index i = 0;
  const auto block = [&](auto count) {
    constexpr int kCount = decltype(count)::value;
    const Index begin = shape == Shape::Upper ? std::min(i, inner) : 0;
    const Index end = shape == Shape::Lower ? std::min(i + kCount, inner) : inner;
    detail::row_block<into, T, kCount>({a.data + i * a.row, a.row, a.col}, b, b_stride, c + i * c_stride, c_stride,
                                       columns, begin, end);
    i += kCount;
  };
  while (i + detail::kTileRows <= rows) block(std::integral_constant<int, detail::kTileRows>{});
  while (i < rows) block(std::integral_constant<int, 1>{});
}

template <class T>
void add_product(Index rows, Index columns, Index inner, Strided<T> a, const T* b, Index b_stride, T* c, Index c_stride,
                 Shape shape = Shape::Full) {
  product<Into::Add, T>(rows, columns, inner, a, b, b_stride, c, c_stride, shape);
}
template <class T>
void set_product(Index rows, Index columns, Index inner, Strided<T> a, const T* b, Index b_stride, T* c, Index c_stride,
                 Shape shape = Shape::Full) {
  product<Into::Set, T>(rows, columns, inner, a, b, b_stride, c, c_stride, shape);
}

namespace detail {

template <class V, std::size_t... Lane>
V interleave(V a, V b, std::size_t first, std::index_sequence<Lane...>) {
  constexpr std::size_t kLanes = sizeof...(Lane);
  return first == 0 ? __builtin_shufflevector(a, b, (Lane / 2 + Lane % 2 * kLanes)...)
                    : __builtin_shufflevector(a, b, (Lane / 2 + Lane % 2 * kLanes + kLanes / 2)...);
}

// Transposes a square block in registers: log2(lanes) rounds of interleaving the halves.
template <class T, Index Side>
inline void transpose_block(const T* in, Index in_stride, T* out, Index out_stride) {
  constexpr int kBytes = static_cast<int>(Side * sizeof(T));
  using V = Lanes<T, kBytes>;
  constexpr std::make_index_sequence<Side> kAll;
  V rows[Side], turned[Side];
  for (Index r = 0; r < Side; ++r) rows[r] = load<T, kBytes>(in + r * in_stride);
  for (Index round = 1; round < Side; round *= 2) {
    for (Index r = 0; r < Side / 2; ++r) {
      turned[2 * r] = interleave(rows[r], rows[r + Side / 2], 0, kAll);
      turned[2 * r + 1] = interleave(rows[r], rows[r + Side / 2], 1, kAll);
    }
    for (Index r = 0; r < Side; ++r) rows[r] = turned[r];
  }
  for (Index r = 0; r < Side; ++r) store<T, kBytes>(out + r * out_stride, rows[r]);
}

}  // namespace detail

// out (columns x rows) = in (rows x columns) transposed.
template <class T>
void transpose(Index rows, Index columns, const T* in, Index in_stride, T* out, Index out_stride) {
  constexpr Index kBlock = std::min<Index>(8, kLanes<T>);
  const Index whole_rows = rows / kBlock * kBlock, whole_columns = columns / kBlock * kBlock;
  for (Index r = 0; r < whole_rows; r += kBlock) {
    for (Index c = 0; c < whole_columns; c += kBlock)
      detail::transpose_block<T, kBlock>(in + r * in_stride + c, in_stride, out + c * out_stride + r, out_stride);
  }
  for (Index r = 0; r < rows; ++r) {
    for (Index c = r < whole_rows ? whole_columns : 0; c < columns; ++c)
      out[c * out_stride + r] = in[r * in_stride + c];
  }
}

namespace detail {

template <class V, std::size_t... Lane>
inline auto lanes_from(V words, std::size_t first, std::index_sequence<Lane...>) {
  return first == 0 ? __builtin_shufflevector(words, words, Lane...)
                    : __builtin_shufflevector(words, words, (Lane + sizeof...(Lane))...);
}
// put(i, piece) for the pieces of 16 bytes of a vector. Halved again and again: storing a half takes no shuffle.
template <int First = 0, class V, class Put>
inline __attribute__((always_inline)) void each_piece(V words, const Put& put) {
  constexpr std::size_t kHalf = sizeof(V) / sizeof(words[0]) / 2;
  if constexpr (sizeof(V) == 16) {
    put(std::integral_constant<int, First>(), words);
  } else {
    each_piece<First>(lanes_from(words, 0, std::make_index_sequence<kHalf>()), put);
    each_piece<First + sizeof(V) / 32>(lanes_from(words, kHalf, std::make_index_sequence<kHalf>()), put);
  }
}

}  // namespace detail

// out (columns x Rows, without gaps) = in (Rows x columns) transposed.
template <class T, Index Rows>
void transpose_tile(Index columns, const T* in, Index in_stride, T* out) {
  Index done = 0;
  if constexpr (sizeof(T) == sizeof(std::uint32_t)) {
    using Words = Lanes<std::uint32_t>;
    constexpr int kPieces = kVectorBytes / 16, kFours = static_cast<int>(Rows) / 4;
    const auto words = [&](Index row) { return reinterpret_cast<Words>(load<T>(in + row * in_stride + done)); };
    static_assert(Rows % 2 == 0);
    for (; done + kLanes<T> <= columns; done += kLanes<T>) {
      unrolled<kFours>([&](auto four) {
        Words block[4];
        unrolled<4>([&](auto r) { block[r()] = words(four() * 4 + r()); });
        transpose_pieces(block);
        unrolled<4>([&](auto column) {
          detail::each_piece(block[column()], [&](auto piece, auto part) {
            std::memcpy(out + (done + piece() * 4 + column()) * Rows + four() * 4, &part, sizeof(part));
          });
        });
      });
      if constexpr (Rows % 4 == 2) {
        const Words first = words(Rows - 2), second = words(Rows - 1);
        const Lanes<std::uint64_t> pairs[2] = {
            reinterpret_cast<Lanes<std::uint64_t>>(unpack<false, std::uint32_t>(first, second)),
            reinterpret_cast<Lanes<std::uint64_t>>(unpack<true, std::uint32_t>(first, second))};
        unrolled<4>([&](auto column) {
          unrolled<kPieces>([&](auto piece) {
            const std::uint64_t pair = pairs[column() / 2][piece() * 2 + column() % 2];
            std::memcpy(out + (done + piece() * 4 + column()) * Rows + Rows - 2, &pair, 8);
          });
        });
      }
    }
  }
  transpose(Rows, columns - done, in + done, in_stride, out + done * Rows, Rows);
}

// out = in. Packs blocks whose rows are some kilobytes apart: at such strides rows would evict each other from the
// first-level cache.
template <class T>
void copy_block(Index rows, Index columns, const T* in, Index in_stride, T* out, Index out_stride) {
  for (Index r = 0; r < rows; ++r) std::copy_n(in + r * in_stride, columns, out + r * out_stride);
}

}  // namespace essh::cpu
