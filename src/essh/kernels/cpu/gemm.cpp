#include "essh/kernels/gemm.h"

#include <algorithm>
#include <cstring>

#include "essh/kernels/cpu/small_gemm.h"

namespace essh {
namespace {

using cpu::Strided;

// Blocks of op(a) and op(b) are packed by all threads into slivers that the register tile reads in order; then tiles of
// c are handed out. Every element of c is one chain of additions in the order of k, whatever the cuts.
constexpr Index kBlockInner = 256;                   // a sliver of b stays in the first-level cache
constexpr Index kBlockSide = 4096;                   // bounds the packed blocks
constexpr Index kTaskRows = 64, kTaskColumns = 288;  // multiples of every register tile

template <class T>
Strided<T> left_operand(const Gemm<T>& op) {
  return op.transpose_a == Transpose::Yes ? Strided<T>{op.a.data, 1, op.a.stride}
                                          : Strided<T>{op.a.data, op.a.stride, 1};
}
// By columns: row strides run along the columns of c.
template <class T>
Strided<T> right_operand(const Gemm<T>& op) {
  return op.transpose_b == Transpose::Yes ? Strided<T>{op.b.data, op.b.stride, 1}
                                          : Strided<T>{op.b.data, 1, op.b.stride};
}

// `count` <= Width rows of `from` as [inner][Width], zero where rows are missing.
template <Index Width, class T>
void pack_sliver(Strided<T> from, Index count, Index inner, T* to) {
  if (count < Width) std::fill_n(to, Width * inner, T(0));
  if (from.row != 1) return cpu::transpose(count, inner, from.data, from.row, to, Width);
  for (Index k = 0; k < inner; ++k, to += Width) {
    const T* line = from.data + k * from.col;
    if (count == Width)
      std::memcpy(to, line, Width * sizeof(T));
    else
      std::copy_n(line, count, to);
  }
}

template <Index Width, class T>
void pack(ThreadPool& pool, Strided<T> from, Index count, Index inner, double scale, T* to) {
  pool.split((count + Width - 1) / Width, [&](Index begin, Index end, int) {
    for (Index sliver = begin; sliver < end; ++sliver) {
      const Index first = sliver * Width;
      T* place = to + first * inner;
      pack_sliver<Width>({from.data + first * from.row, from.row, from.col}, std::min(Width, count - first), inner,
                         place);
      if (scale != 1) {
        for (Index i = 0; i < Width * inner; ++i) place[i] *= static_cast<T>(scale);
      }
    }
  });
}

// Where registers are many, three vectors a row: a packed sliver need not be a power of two wide.
constexpr int kVectors = cpu::detail::kTileVectors == 1 ? 1 : 3;
template <class T>
constexpr Index kColumns = kVectors* cpu::detail::kVectorBytes / static_cast<Index>(sizeof(T));
constexpr Index kRows = cpu::detail::kTileRows;

// c += packed a * packed b for one register tile, `rows` x `columns` of it inside c; Into::Set takes c as zero.
template <cpu::Into into, class T>
void add_tile(const T* a, const T* b, Index inner, T* c, Index stride, Index rows, Index columns) {
  const auto tile = [&](T* to, Index to_stride) {
    cpu::detail::tile<T, kRows, kVectors, cpu::detail::kVectorBytes, into>({a, 1, kRows}, b, kColumns<T>, to, to_stride,
                                                                           0, inner);
  };
  if (rows == kRows && columns == kColumns<T>) return tile(c, stride);
  T whole[kRows * kColumns<T>] = {};
  if constexpr (into == cpu::Into::Add) {
    for (Index r = 0; r < rows; ++r) std::copy_n(c + r * stride, columns, whole + r * kColumns<T>);
  }
  tile(whole, kColumns<T>);
  for (Index r = 0; r < rows; ++r) std::copy_n(whole + r * kColumns<T>, columns, c + r * stride);
}

template <cpu::Into into, class T>
void add_block(ThreadPool& pool, const T* a, const T* b, Index inner, Matrix<T> c) {
  const Index down = (c.rows + kTaskRows - 1) / kTaskRows, across = (c.cols + kTaskColumns - 1) / kTaskColumns;
  pool.each(down * across, [&](Index task, int) {
    const Index top = task % down * kTaskRows, left = task / down * kTaskColumns;
    const Index bottom = std::min(top + kTaskRows, c.rows), right = std::min(left + kTaskColumns, c.cols);
    for (Index j = left; j < right; j += kColumns<T>) {
      for (Index i = top; i < bottom; i += kRows) {
        add_tile<into>(a + i * inner, b + j * inner, inner, c.row(i) + j, c.stride, std::min(kRows, bottom - i),
                       std::min(kColumns<T>, right - j));
      }
    }
  });
}

template <class T>
void scale_rows(ThreadPool& pool, Matrix<T> c, double beta) {
  if (beta == 1) return;
  pool.split(c.rows, [&](Index begin, Index end, int) {
    for (Index r = begin; r < end; ++r) {
      T* row = c.row(r);
      if (beta == 0) {
        std::fill_n(row, c.cols, T(0));
      } else {
        for (Index i = 0; i < c.cols; ++i) row[i] *= static_cast<T>(beta);
      }
    }
  });
}

template <class T>
void packed_product(cpu::Stream& stream, const Gemm<T>& op) {
  auto& pool = stream.pool();
  const Index depth = op.transpose_a == Transpose::Yes ? op.a.rows : op.a.cols;
  const auto round_up = [](Index count, Index unit) { return (count + unit - 1) / unit * unit; };
  cpu::Scratch scratch(stream, 0);
  T* packed_a = scratch.take<T>(round_up(std::min(op.c.rows, kBlockSide), kRows) * kBlockInner);
  T* packed_b = scratch.take<T>(round_up(std::min(op.c.cols, kBlockSide), kColumns<T>) * kBlockInner);
  const auto a = left_operand(op), b = right_operand(op);
  const bool sets = op.beta == 0 && depth > 0;
  if (!sets) scale_rows(pool, op.c, op.beta);
  for (Index k = 0; k < depth; k += kBlockInner) {
    const Index inner = std::min(kBlockInner, depth - k);
    for (Index j = 0; j < op.c.cols; j += kBlockSide) {
      const Index columns = std::min(kBlockSide, op.c.cols - j);
      pack<kColumns<T>>(pool, {b.data + j * b.row + k * b.col, b.row, b.col}, columns, inner, 1, packed_b);
      for (Index i = 0; i < op.c.rows; i += kBlockSide) {
        const Index rows = std::min(kBlockSide, op.c.rows - i);
        pack<kRows>(pool, {a.data + i * a.row + k * a.col, a.row, a.col}, rows, inner, op.alpha, packed_a);
        const auto block = op.c.block(i, rows, j, columns);
        if (sets && k == 0)
          add_block<cpu::Into::Set>(pool, packed_a, packed_b, inner, block);
        else
          add_block<cpu::Into::Add>(pool, packed_a, packed_b, inner, block);
      }
    }
  }
}

// Inner products of Rows rows with one row of a weight, in the same order for any number of rows.
template <int Rows, class T>
void dots(const T* x, Index x_stride, const T* weight, Index count, T* out) {
  constexpr int kChains = 4;
  constexpr Index kLanes = cpu::detail::kVectorBytes / static_cast<Index>(sizeof(T)), kStep = kChains * kLanes;
  using V = typename cpu::detail::VectorOf<T, cpu::detail::kVectorBytes>::type;
  V sums[Rows][kChains] = {};
  Index i = 0;
  for (; i + kStep <= count; i += kStep) {
    for (int j = 0; j < kChains; ++j) {
      V right, left;
      std::memcpy(&right, weight + i + j * kLanes, sizeof(V));
      for (int r = 0; r < Rows; ++r) {
        std::memcpy(&left, x + r * x_stride + i + j * kLanes, sizeof(V));
        sums[r][j] += left * right;
      }
    }
  }
  for (int r = 0; r < Rows; ++r) {
    const V folded = (sums[r][0] + sums[r][1]) + (sums[r][2] + sums[r][3]);
    T total = 0;
    for (Index lane = 0; lane < kLanes; ++lane) total += folded[lane];
    for (Index k = i; k < count; ++k) total += x[r * x_stride + k] * weight[k];
    out[r] = total;
  }
}

// Few rows times a weight [out, in]: bound by reading the weight once, so each thread takes a range of its rows.
template <class T>
void few_rows(cpu::Stream& stream, const Gemm<T>& op) {
  constexpr Index kGroup = 4;
  const T alpha = static_cast<T>(op.alpha), beta = static_cast<T>(op.beta);
  stream.pool().split(op.c.cols, [&](Index begin, Index end, int) {
    for (Index n = begin; n < end; ++n) {
      T products[kGroup];
      for (Index r = 0; r < op.c.rows;) {
        const auto take = [&]<int Rows>() {
          dots<Rows>(op.a.row(r), op.a.stride, op.b.row(n), op.a.cols, products);
          for (int i = 0; i < Rows; ++i) {
            T& c = op.c(r + i, n);
            c = beta == T(0) ? alpha * products[i] : beta * c + alpha * products[i];
          }
          r += Rows;
        };
        if (op.c.rows - r >= kGroup)
          take.template operator()<kGroup>();
        else
          take.template operator()<1>();
      }
    }
  });
}

}  // namespace

template <class T, class Out>
void run(cpu::Stream& stream, const Gemm<T, Out>& op) {
  if (op.c.rows == 0 || op.c.cols == 0) return;
  if (!op.addend.empty() && op.beta != 0) {
    stream.pool().split(op.c.rows, [&](Index begin, Index end, int) {
      for (Index r = begin; r < end; ++r) std::copy_n(op.addend.row(r), op.c.cols, op.c.row(r));
    });
  }
  // Packing a weight costs more than these rows gain from it.
  constexpr Index kFewRows = 16;
  if (op.c.rows <= kFewRows && op.transpose_a == Transpose::No && op.transpose_b == Transpose::Yes)
    few_rows(stream, op);
  else
    packed_product(stream, op);
}

template void run(cpu::Stream&, const Gemm<float>&);
template void run(cpu::Stream&, const Gemm<double>&);

}  // namespace essh
