#pragma once
#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>

#include "essh/device/cpu/stream.h"
#include "essh/kernels/cpu/product_result.h"
#include "essh/kernels/cpu/small_gemm.h"
#include "essh/kernels/cpu/weight_columns.h"

// Products of many rows. All threads pack blocks of both operands into slivers that the register tile reads
// sequentially; then tiles of the result are handed out as tasks. Every sum is one chain of fused multiply-adds in the
// order of the inner index, whatever the blocking.
namespace essh::cpu {

// The register tile holds as many sums as fit in the registers beside one row of the right operand. A sliver of the
// right operand is kTileVectors vectors wide, one of the left operand kTileRows elements.
namespace packed {
inline constexpr Index kRows = kManyRegisters ? 8 : 6;
inline constexpr int kVectors = kManyRegisters ? 3 : 2;
template <class T>
inline constexpr Index kColumns = kVectors* kLanes<T>;
inline constexpr Index kBlockInner = 256;  // a sliver of the right operand stays in the first-level cache
inline constexpr Index kBlockSide = 2048;  // bounds the packed blocks and the sums kept outside y
inline constexpr Index kTaskTiles = 8;     // tiles of rows and slivers of a task, at most
template <class T>
inline constexpr Index kTaskSlivers = 288 / kColumns<T>;
// Whether tasks pack weights for many rows: 5 % faster with NEON in the largest product, within the noise with AVX-512,
// probably slower with AVX2.
inline constexpr bool kPacksManyRows = kVectorBytes != 32;
inline constexpr Index kLeftBytes = Index{1} << 20;  // of a packed left operand that stays in the second-level cache
// Whether a tile prefetches the next tile's sums: 2-5 % faster with AVX-512, no gain with AVX2, slower with NEON.
inline constexpr bool kPrefetchesSums = kVectorBytes == 64;
inline constexpr Index kPrefetchInner = kBlockInner / 2;  // shorter tiles end before the sums arrive

inline Index parts(Index count, Index unit) {
  return (count + unit - 1) / unit;
}
inline Index round_up(Index count, Index unit) {
  return parts(count, unit) * unit;
}
// Where range `index` of `ranges` equal ones begins.
inline Index cut(Index count, Index ranges, Index index) {
  return count * index / ranges;
}
}  // namespace packed

// Columns [column, column + columns) of the result, computed from one sliver.
struct SliverPlace {
  Index column, columns;
};

// Concatenated weights as the right operand; every weight begins a new sliver.
template <class T>
class WeightSlivers {
 public:
  explicit WeightSlivers(std::span<const Weight> weights) : weights_(weights) {
    for (const Weight& weight : weights) count_ += slivers(weight);
  }
  Index count() const { return count_; }
  SliverPlace place(Index sliver) const {
    const Place at = find(sliver);
    return {at.column + at.row, std::min(packed::kColumns<T>, at.weight->rows - at.row)};
  }
  static constexpr Index kTogether = 1;
  // Elements [k, k + inner) of `count` slivers, each as [inner][kColumns], zero beyond the last row.
  void pack(Index first, Index count, Index k, Index inner, T* to) const {
    for (Index s = 0; s < count; ++s) pack(first + s, k, inner, to + s * inner * packed::kColumns<T>);
  }

 private:
  void pack(Index sliver, Index k, Index inner, T* to) const {
    const Place at = find(sliver);
    with_format<T>(at.weight->format, [&](auto format) {
      using Columns = WeightColumns<T, decltype(format)::value>;
      const Index stride = at.weight->stride * Columns::kBytes;
      for (Index first = 0; first < packed::kColumns<T>; first += kLanes<T>) {
        const Index rows = std::clamp<Index>(at.weight->rows - at.row - first, 0, kLanes<T>);
        const std::byte* from = at.weight->row(at.row + first) + k * Columns::kBytes;
        T* place = to + first;
        const auto put = [&](auto j, Lanes<T> column) { store<T>(place + j() * packed::kColumns<T>, column); };
        for (Index i = 0; i < inner; i += Columns::kSpan, place += Columns::kSpan * packed::kColumns<T>) {
          const Index count = std::min<Index>(Columns::kSpan, inner - i);
          if (rows == kLanes<T> && count == Columns::kSpan)
            Columns::visit(from + i * Columns::kBytes, stride, put);
          else
            Columns::visit_part(from + i * Columns::kBytes, stride, rows, count, put);
        }
      }
    });
  }

  struct Place {
    const Weight* weight;
    Index row, column;  // row: of the weight; column: of the result, for the weight's first row
  };
  static Index slivers(const Weight& weight) { return (weight.rows + packed::kColumns<T> - 1) / packed::kColumns<T>; }
  Place find(Index sliver) const {
    Index column = 0;
    for (const Weight& weight : weights_) {
      if (sliver < slivers(weight)) return {&weight, sliver * packed::kColumns<T>, column};
      sliver -= slivers(weight);
      column += weight.rows;
    }
    ESSH_ASSERT(false);
    return {};
  }

  std::span<const Weight> weights_;
  Index count_ = 0;
};

// A matrix inner x columns as the right operand.
template <class T>
class MatrixSlivers {
 public:
  explicit MatrixSlivers(Matrix<const T> matrix) : matrix_(matrix) {}
  Index count() const { return (matrix_.cols + packed::kColumns<T> - 1) / packed::kColumns<T>; }
  SliverPlace place(Index sliver) const {
    const Index column = sliver * packed::kColumns<T>;
    return {column, std::min(packed::kColumns<T>, matrix_.cols - column)};
  }
  // A row of one sliver can be less than a cache line: several are read together.
  static constexpr Index kTogether = std::max<Index>(1, 192 / (packed::kColumns<T> * static_cast<Index>(sizeof(T))));
  void pack(Index first, Index count, Index k, Index inner, T* to) const {
    const Index begin = place(first).column, sliver = inner * packed::kColumns<T>;
    const Index whole = std::min(count, (matrix_.cols - begin) / packed::kColumns<T>);
    for (Index i = 0; i < inner; ++i, to += packed::kColumns<T>) {
      const T* from = matrix_.row(k + i) + begin;
      for (Index s = 0; s < whole; ++s, from += packed::kColumns<T>) {
        for (int v = 0; v < packed::kVectors; ++v)
          store<T>(to + s * sliver + v * kLanes<T>, load<T>(from + v * kLanes<T>));
      }
      if (whole < count) {
        T* last = to + whole * sliver;
        const Index columns = matrix_.cols - begin - whole * packed::kColumns<T>;
        std::fill(std::copy_n(from, columns, last), last + packed::kColumns<T>, T(0));
      }
    }
  }

 private:
  Matrix<const T> matrix_;
};

namespace packed {

// Tiles of rows as [inner][kRows] each, zero where rows are missing.
template <class T>
void pack_left(Strided<T> from, Index rows, Index inner, T* to) {
  const Index whole = rows / kRows;
  if (whole * kRows < rows) {
    T* last = to + whole * kRows * inner;
    std::fill_n(last, kRows * inner, T(0));
    for (Index i = whole * kRows; i < rows; ++i, ++last) {
      for (Index k = 0; k < inner; ++k) last[k * kRows] = from.data[i * from.row + k * from.col];
    }
  }
  if (from.row != 1) {
    for (Index i = 0; i < whole; ++i)
      transpose_tile<T, kRows>(inner, from.data + i * kRows * from.row, from.row, to + i * kRows * inner);
    return;
  }
  // The rows of a tile lie side by side, in less than a cache line: several tiles are read together.
  constexpr Index kTogether = 192 / (kRows * static_cast<Index>(sizeof(T)));
  for (Index first = 0; first < whole; first += kTogether) {
    const Index tiles = std::min(kTogether, whole - first);
    for (Index k = 0; k < inner; ++k) {
      const T* line = from.data + k * from.col + first * kRows;
      T* place = to + first * kRows * inner + k * kRows;
      for (Index t = 0; t < tiles; ++t, line += kRows, place += kRows * inner) {
        std::memcpy(place, line, sizeof(T) * kRows);
      }
    }
  }
}

// A block of the result, and the operands of a range of the inner index. They are packed in pieces of kBlockInner, a
// piece of all slivers after the other.
template <class T>
struct Block {
  const T *left = nullptr, *right = nullptr;  // packed slivers; without `right`, each task packs its own
  Index k = 0, inner = 0;
  Index row = 0, rows = 0;  // rows of the result
  Index sliver = 0, slivers = 0;
  Matrix<T> sums;                   // sums of these rows, columns from first_column on
  Index first_column = 0;           // first column of `sums`
  bool first = true, last = false;  // along the inner index

  Block piece(Index from) const {
    Block one = *this;
    one.k = k + from;
    one.inner = std::min(kBlockInner, inner - from);
    one.left = left + from * round_up(rows, kRows);
    if (right) one.right = right + from * slivers * kColumns<T>;
    one.first = first && from == 0;
    one.last = last && from + one.inner == inner;
    return one;
  }
};

// One register tile; `rows` x `columns` of it lie inside the result. Computes only vectors that do.
template <class T>
void add_tile(const Block<T>& block, const T* left, const T* right, Index row, SliverPlace place, Index rows,
              const ProductResult<T>& result) {
  T* sums = block.sums.row(row) + place.column - block.first_column;
  const auto tile = [&](bool set, T* to, Index stride) {
    const auto of = [&]<int vectors>() {
      const auto compute = [&]<Into into>() {
        detail::tile<T, kRows, vectors, kVectorBytes, into>(Sliver<T>{left}, right, kColumns<T>, to, stride, 0,
                                                            block.inner);
      };
      set ? compute.template operator()<Into::Set>() : compute.template operator()<Into::Add>();
    };
    const Index vectors = parts(place.columns, kLanes<T>);
    if (vectors == 1)
      of.template operator()<1>();
    else if (kVectors > 2 && vectors == 2)
      of.template operator()<2>();
    else
      of.template operator()<kVectors>();
  };
  const bool direct = !block.last || (result.is_plain() && result.can_hold_sums());
  if (direct && rows == kRows && place.columns % kLanes<T> == 0) return tile(block.first, sums, block.sums.stride);
  T whole[kRows * kColumns<T>] = {};
  if (!block.first) {
    for (Index r = 0; r < rows; ++r) std::copy_n(sums + r * block.sums.stride, place.columns, whole + r * kColumns<T>);
  }
  tile(false, whole, kColumns<T>);
  for (Index r = 0; r < rows; ++r) {
    if (block.last)
      result.finish(block.row + row + r, place.column, place.columns, whole + r * kColumns<T>);
    else
      std::copy_n(whole + r * kColumns<T>, place.columns, sums + r * block.sums.stride);
  }
}

// Prefetches the sums of one tile.
template <class T>
void prefetch_sums(const Block<T>& block, Index row, SliverPlace place, Index rows) {
  constexpr Index kLine = 64 / static_cast<Index>(sizeof(T));
  for (Index r = row; r < row + rows; ++r) {
    const T* sums = block.sums.row(r) + place.column - block.first_column;
    for (Index column = 0; column < place.columns; column += kLine) __builtin_prefetch(sums + column, 1);
  }
}

// Tasks of a block: so many ranges of its rows, times so many of its slivers.
struct Grid {
  Index down = 1, across = 1;
  Index longest = 0;  // tiles that the busiest thread computes
};

// The grid, of at most `most_down` ranges of rows, whose busiest thread has the fewest tiles.
template <class T>
Grid grid_for(Index tiles, Index slivers, Index threads, Index most_down) {
  Grid best;
  for (Index down = std::min(parts(tiles, kTaskTiles), most_down);; down = std::min(2 * down, most_down)) {
    for (const Index tasks : {2 * threads, threads}) {
      // The ranges of slivers that make the number of tasks a multiple of the threads'.
      const Index step = threads / std::gcd(threads, down);
      const Index least = std::max(parts(slivers, kTaskSlivers<T>), threads == 1 ? 1 : parts(tasks, down));
      const Index across = std::min(slivers, round_up(least, step));
      const Index longest = parts(down * across, threads) * parts(tiles, down) * parts(slivers, across);
      if (best.longest == 0 || longest < best.longest) best = {down, across, longest};
    }
    if (down == most_down || threads == 1) return best;
  }
}

// The thread that multiplies by a sliver of the right operand packs it, into its own cache, instead of all threads
// packing all slivers first. That takes ranges of slivers alone, and pays only if these leave no thread idle for long.
// Many rows: only where the packed left operand stays in the second-level cache, and not for columns of a matrix, a few
// lines of every page, which are packed faster in larger blocks.
template <class T, class Slivers>
bool packs_as_it_goes(Index rows, Index slivers, Index threads) {
  const bool many = kPacksManyRows && std::is_same_v<Slivers, WeightSlivers<T>>;
  const Index most = many ? kLeftBytes / (kBlockInner * Index{sizeof(T)}) : 2 * kTaskTiles * kRows;
  if (rows > most) return false;
  const Index idle = parts(slivers, threads) * threads - slivers;
  return idle * rows <= 4 * slivers;
}

// Packs the left operand of a block, and the right one unless the tasks do.
template <class T, class Slivers>
void pack_block(Stream& stream, const Block<T>& block, Strided<T> left, const Slivers& right, T* left_to, T* right_to) {
  const Index threads = stream.pool().threads(), tiles = parts(block.rows, kRows);
  const Index groups = parts(block.slivers, Slivers::kTogether);
  stream.pool().split(threads, [&](Index begin, Index end, int) {
    for (Index from = 0; from < block.inner; from += kBlockInner) {
      const auto piece = block.piece(from);
      if (right_to) {
        T* to = right_to + from * block.slivers * kColumns<T>;
        const Index last = std::min(cut(groups, threads, end) * Slivers::kTogether, block.slivers);
        for (Index s = cut(groups, threads, begin) * Slivers::kTogether; s < last; s += Slivers::kTogether)
          right.pack(block.sliver + s, std::min(Slivers::kTogether, last - s), piece.k, piece.inner,
                     to + s * kColumns<T> * piece.inner);
      }
      T* to = left_to + from * tiles * kRows;
      const Index first = cut(tiles, threads, begin) * kRows;
      const Index last = std::min(cut(tiles, threads, end) * kRows, block.rows);
      pack_left({left.data + (block.row + first) * left.row + piece.k * left.col, left.row, left.col}, last - first,
                piece.inner, to + first * piece.inner);
    }
  });
}

template <class T, class Slivers>
void add_block(Stream& stream, const Block<T>& block, const Slivers& right, const ProductResult<T>& result) {
  const bool packing = block.right == nullptr;
  const Index tiles = parts(block.rows, kRows);
  const Grid grid = grid_for<T>(tiles, block.slivers, stream.pool().threads(), packing ? 1 : tiles);
  stream.pool().each(grid.down * grid.across, [&](Index task, int thread) {
    Scratch scratch(stream, thread);
    T* own = packing ? scratch.take<T>(Slivers::kTogether * kColumns<T> * kBlockInner) : nullptr;
    const Index down = task % grid.down, across = task / grid.down;
    const Index top = cut(tiles, grid.down, down) * kRows;
    const Index bottom = std::min(cut(tiles, grid.down, down + 1) * kRows, block.rows);
    const Index left = cut(block.slivers, grid.across, across), end = cut(block.slivers, grid.across, across + 1);
    for (Index from = 0; from < block.inner || from == 0; from += kBlockInner) {
      const auto piece = block.piece(from);
      const Index sliver_elements = kColumns<T> * piece.inner;
      for (Index s = left; s < end; ++s) {
        const auto place = right.place(block.sliver + s);
        const Index among = (s - left) % Slivers::kTogether;
        if (packing && among == 0)
          right.pack(block.sliver + s, std::min(Slivers::kTogether, end - s), piece.k, piece.inner, own);
        const T* sliver = packing ? own + among * sliver_elements : piece.right + s * sliver_elements;
        for (Index i = top; i < bottom; i += kRows) {
          const Index next = i + kRows;
          if (kPrefetchesSums && piece.inner >= kPrefetchInner && next < bottom)
            prefetch_sums(piece, next, place, std::min(kRows, bottom - next));
          add_tile(piece, piece.left + i * piece.inner, sliver, i, place, std::min(kRows, bottom - i), result);
        }
      }
    }
  });
}

}  // namespace packed

// result = left (rows x depth) times the right operand.
template <class T, class Slivers>
void packed_product(Stream& stream, Strided<T> left, Index depth, const Slivers& right,
                    const ProductResult<T>& result) {
  using namespace packed;
  const Index rows = result.y.rows, slivers = right.count();
  const Index block_slivers = parts(slivers, parts(slivers, parts(kBlockSide, kColumns<T>)));
  const bool packing = packs_as_it_goes<T, Slivers>(rows, block_slivers, stream.pool().threads());
  // Small blocks take a longer range of the inner index: fewer rounds of the threads. One thread has no rounds, and
  // packed blocks that stay in the cache.
  const Index block_rows = round_up(std::min(rows, kBlockSide), kRows);
  const Index side = packing ? block_rows : std::max(block_rows, block_slivers * kColumns<T>);
  const Index pieces = packing || stream.pool().threads() > 1 ? std::max<Index>(1, kBlockSide / side) : 1;
  const Index block_inner = std::min(pieces * kBlockInner, std::max<Index>(1, depth));
  Scratch scratch(stream, 0);
  T* packed_left = scratch.take<T>(block_rows * block_inner);
  T* packed_right = packing ? nullptr : scratch.take<T>(block_slivers * kColumns<T> * block_inner);
  const bool waiting = depth > kBlockInner && !result.can_hold_sums();
  T* sums = waiting ? scratch.take<T>(block_rows * block_slivers * kColumns<T>) : nullptr;
  for (Index s = 0; s < slivers; s += block_slivers) {
    Block<T> block;
    block.left = packed_left;
    block.right = packed_right;
    block.sliver = s;
    block.slivers = std::min(block_slivers, slivers - s);
    const Index first_column = right.place(s).column;
    const auto last = right.place(s + block.slivers - 1);
    const Index columns = last.column + last.columns - first_column;
    for (block.row = 0; block.row < rows; block.row += kBlockSide) {
      block.rows = std::min(kBlockSide, rows - block.row);
      block.sums = waiting ? dense(sums, block.rows, columns) : result.y.middle(block.row, block.rows);
      block.first_column = waiting ? first_column : 0;
      for (Index k = 0; k < depth || k == 0; k += block_inner) {
        block.k = k;
        block.inner = std::min(block_inner, depth - k);
        block.first = k == 0;
        block.last = k + block_inner >= depth;
        pack_block(stream, block, left, right, packed_left, packed_right);
        add_block(stream, block, right, result);
      }
    }
  }
}

}  // namespace essh::cpu
