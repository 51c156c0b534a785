#include "essh/kernels/window_step.h"

#include <cstring>
#include <utility>

#include "essh/kernels/cpu/attend_row.h"
#include "essh/kernels/reference/coded_rows.h"

namespace essh {
namespace {

// Scores are computed row by row, values are summed for several heads at once: hardware prefetching stops at the end of
// a page, so reading one head's columns of every row would wait for memory at each row.
template <class T>
class Step {
 public:
  explicit Step(const WindowStep<T>& op)
      : op_(op),
        dim_(op.head_dim),
        width_(op.k.cols),
        heads_(op.q.cols / dim_),
        kv_heads_(width_ / dim_),
        group_(heads_ / kv_heads_),
        element_bytes_(op.coded ? 1 : static_cast<Index>(sizeof(T))),
        row_bytes_(op.coded ? coded_row_bytes(width_, dim_) : width_ * element_bytes_) {
    Index seen = 0;
    for (Index b = 0; b < op.q.rows; ++b) seen = std::max(seen, past(b) + 1);
    // Not a power of two, so that scores of a row's heads do not map to the same cache set.
    stride_ = (seen + 15) / 16 * 16 + 16;
  }

  void run(cpu::Stream& stream) const {
    const Index sequences = op_.q.rows, size = heads_ * stride_, threads = stream.pool().threads();
    // A task for each sequence, where that leaves no thread idle for long.
    if (sequences % threads == 0 || sequences >= 4 * threads) {
      stream.pool().each(sequences, [&](Index b, int thread) {
        cpu::Scratch scratch(stream, thread);
        T* const scores = scratch.take<T>(size);
        store_new_row(b);
        set_scores(scratch, b, 0, stride_, scores);
        sum_values(scratch, b, 0, kv_heads_, scores);
      });
      return;
    }
    cpu::Scratch shared(stream, 0);
    T* const scores = shared.take<T>(sequences * size);
    constexpr Index kRows = 64;
    const Index blocks = (stride_ + kRows - 1) / kRows;
    stream.pool().each(sequences * blocks, [&](Index task, int thread) {
      cpu::Scratch scratch(stream, thread);
      const Index b = task / blocks, begin = task % blocks * kRows;
      if (begin == 0) store_new_row(b);
      set_scores(scratch, b, begin, begin + kRows, scores + b * size);
    });
    const Index shares = std::min((threads + sequences - 1) / sequences, kv_heads_);
    stream.pool().each(sequences * shares, [&](Index task, int thread) {
      cpu::Scratch scratch(stream, thread);
      const Index b = task / shares, share = task % shares;
      sum_values(scratch, b, kv_heads_ * share / shares, kv_heads_ * (share + 1) / shares, scores + b * size);
    });
  }

 private:
  static constexpr Index kBlock = 8;  // rows of values that are summed together

  // How many cached positions a sequence sees.
  Index past(Index b) const { return std::min(op_.positions[b], op_.window - 1); }
  Index row_of(Index position) const { return op_.rows == 0 ? position : position % op_.rows; }

  // Tasks of this step read the new row from op_.k and op_.v, never from the cache.
  void store_new_row(Index b) const {
    const Index at = row_of(op_.positions[b]) * row_bytes_;
    for (const bool is_key : {true, false}) {
      const T* const from = is_key ? op_.k.row(b) : op_.v.row(b);
      auto* const row = reinterpret_cast<std::byte*>(is_key ? op_.keys[b] : op_.values[b]) + at;
      if (!op_.coded) {
        std::memcpy(row, from, static_cast<std::size_t>(row_bytes_));
        continue;
      }
      for (Index h = 0; h < kv_heads_; ++h)
        reference::store_coded_head(dim_, from + h * dim_, row + h * dim_, row + width_ + h * 2);
      std::fill(row + width_ + kv_heads_ * 2, row + row_bytes_, std::byte{0});
    }
  }

  // Kv heads [begin, end) of `count` rows of a cache: in place, or decoded into `decoded`.
  Matrix<const T> cached(const T* cache, Index row, Index count, Index begin, Index end, T* decoded) const {
    const Index columns = (end - begin) * dim_;
    if (!op_.coded) return {cache + row * width_ + begin * dim_, count, columns, width_};
    for (Index r = 0; r < count; ++r) {
      const auto* const bytes = reinterpret_cast<const std::byte*>(cache) + (row + r) * row_bytes_;
      for (Index h = begin; h < end; ++h)
        reference::load_coded_head(dim_, bytes + h * dim_, bytes + width_ + h * 2,
                                   decoded + r * columns + (h - begin) * dim_);
    }
    return {decoded, count, columns, columns};
  }
  void prefetch(const T* cache, Index row, Index end_row, Index begin, Index end) const {
    constexpr Index kLine = 64;
    for (; row < end_row; ++row) {
      const auto* const bytes = reinterpret_cast<const std::byte*>(cache) + row * row_bytes_;
      for (Index i = begin * dim_ * element_bytes_; i < end * dim_ * element_bytes_; i += kLine)
        __builtin_prefetch(bytes + i);
    }
  }

  // Of all heads with rows [begin, end) of those that sequence b sees, the new one last.
  void set_scores(cpu::Scratch& scratch, Index b, Index begin, Index end, T* scores) const {
    T* const decoded = scratch.take<T>(width_);
    const Index past_rows = past(b), oldest = op_.positions[b] - past_rows;
    for (Index r = begin; r < std::min(end, past_rows + 1); ++r) {
      const T* const key =
          r < past_rows ? cached(op_.keys[b], row_of(oldest + r), 1, 0, kv_heads_, decoded).data : op_.k.row(b);
      for (Index h = 0; h < heads_; ++h)
        scores[h * stride_ + r] = cpu::dot(dim_, op_.q.row(b) + h * dim_, key + h / group_ * dim_);
    }
  }

  // The result of the query heads that read kv heads [begin, end).
  void sum_values(cpu::Scratch& scratch, Index b, Index begin, Index end, T* scores) const {
    constexpr Index kAhead = 16;
    T* const decoded = scratch.take<T>(kBlock * (end - begin) * dim_);
    const Index past_rows = past(b), first = row_of(op_.positions[b] - past_rows);
    const T scale = T(1) / std::sqrt(static_cast<T>(dim_));
    for (Index h = begin * group_; h < end * group_; ++h)
      cpu::softmax_row(scores + h * stride_, past_rows + 1, 0, past_rows + 1, scale);
    std::fill_n(op_.out.row(b) + begin * group_ * dim_, (end - begin) * group_ * dim_, T(0));
    Index at = 0;
    const auto add = [&](Matrix<const T> values) {
      for (Index h = begin * group_; h < end * group_; ++h) {
        cpu::add_product<T>(1, dim_, values.rows, {scores + h * stride_ + at, 0, 1},
                            values.data + (h / group_ - begin) * dim_, values.stride, op_.out.row(b) + h * dim_, dim_);
      }
      at += values.rows;
    };
    // The cached positions in order, one or two contiguous pieces, then the new one.
    const Index before_wrap = op_.rows == 0 ? past_rows : std::min(past_rows, op_.rows - first);
    for (const auto& [piece, piece_end] :
         {std::pair(first, first + before_wrap), std::pair(Index{0}, past_rows - before_wrap)}) {
      for (Index row = piece; row < piece_end; row += kBlock) {
        prefetch(op_.values[b], row + kAhead, std::min(row + kAhead + kBlock, piece_end), begin, end);
        add(cached(op_.values[b], row, std::min(kBlock, piece_end - row), begin, end, decoded));
      }
    }
    add({op_.v.row(b) + begin * dim_, 1, (end - begin) * dim_, width_});
  }

  const WindowStep<T>& op_;
  Index dim_, width_, heads_, kv_heads_, group_;
  Index element_bytes_, row_bytes_;  // of a cache
  Index stride_;                     // of the scores of a head
};

}  // namespace

template <class T>
void run(cpu::Stream& stream, const WindowStep<T>& op) {
  ESSH_ASSERT(op.rows == 0 || op.rows >= op.window);
  Step<T>(op).run(stream);
}

template void run(cpu::Stream&, const WindowStep<float>&);
template void run(cpu::Stream&, const WindowStep<double>&);

}  // namespace essh
