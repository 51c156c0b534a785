#include "essh/kernels/window_step.h"

#include <array>

#include "essh/kernels/cpu/attend_row.h"
#include "essh/kernels/reference/coded_rows.h"

namespace essh {
namespace {

template <class T>
Index slot_of(const WindowStep<T>& op, Index position) {
  return op.rows == 0 ? position : position % op.rows;
}
// How many cached positions a sequence sees.
template <class T>
Index past_of(const WindowStep<T>& op, Index b) {
  return std::min(op.positions[b], op.window - 1);
}

// One head of one sequence, whose caches hold codes.
template <class T>
void attend_coded(cpu::Scratch& scratch, const WindowStep<T>& op, Index b, Index head) {
  const Index width = op.k.cols, dim = op.head_dim, heads = op.q.cols / dim, group = heads / (width / dim);
  const Index column = head / group * dim, position = op.positions[b], past = past_of(op, b);
  const T *key = op.k.row(b) + column, *value = op.v.row(b) + column;
  const Index bytes = coded_row_bytes(width, dim);
  T* const seen = scratch.take<T>(2 * past * dim);
  for (const bool is_key : {true, false}) {
    auto* const cache = reinterpret_cast<std::byte*>(is_key ? op.keys[b] : op.values[b]);
    const auto codes = [&](Index p) { return cache + slot_of(op, p) * bytes + column; };
    const auto scale = [&](Index p) { return cache + slot_of(op, p) * bytes + width + column / dim * 2; };
    // Heads of a group run concurrently: one writes the new row to the cache, none reads it from there.
    if (head % group == 0) reference::store_coded_head(dim, is_key ? key : value, codes(position), scale(position));
    if (head == heads - 1) {
      auto* const row = cache + slot_of(op, position) * bytes;
      std::fill(row + width + width / dim * 2, row + bytes, std::byte{0});
    }
    for (Index i = 0; i < past; ++i)
      reference::load_coded_head(dim, codes(position - past + i), scale(position - past + i),
                                 seen + (i + (is_key ? 0 : past)) * dim);
  }
  const cpu::KeyValueRows<T> pieces[] = {{{seen, past, dim, dim}, {seen + past * dim, past, dim, dim}},
                                         {{key, 1, dim, dim}, {value, 1, dim, dim}}};
  cpu::attend_row<T>(op.q.row(b) + head * dim, pieces, scratch.take<T>(past + 1), op.out.row(b) + head * dim);
}

// Reads the caches by whole rows, or by many heads of each: one head of every row would be a new page of memory each
// time, which processors do not fetch ahead.
template <class T>
class PlainStep {
 public:
  explicit PlainStep(const WindowStep<T>& op)
      : op_(op), dim_(op.head_dim), width_(op.k.cols), heads_(op.q.cols / dim_), group_(op.q.cols / op.k.cols) {
    Index seen = 0;
    for (Index b = 0; b < op.q.rows; ++b) seen = std::max(seen, past_of(op, b) + 1);
    // Not a power of two, so that scores of a row's heads do not map to the same cache set.
    stride_ = (seen + 15) / 16 * 16 + 16;
  }

  void run(cpu::Stream& stream) {
    const Index sequences = op_.q.rows, kv_heads = width_ / dim_, size = heads_ * stride_;
    const Index threads = stream.pool().threads();
    // A task for each sequence, where that leaves no thread idle for long.
    if (sequences % threads == 0 || sequences >= 4 * threads) {
      stream.pool().each(sequences, [&](Index b, int thread) {
        cpu::Scratch scratch(stream, thread);
        T* const scores = scratch.take<T>(size);
        store_new_row(b);
        set_scores(b, 0, stride_, scores);
        sum_values(b, 0, kv_heads, scores);
      });
      return;
    }
    cpu::Scratch scratch(stream, 0);
    T* const scores = scratch.take<T>(sequences * size);
    constexpr Index kRows = 64;
    const Index blocks = (stride_ + kRows - 1) / kRows;
    stream.pool().each(sequences * blocks, [&](Index task, int) {
      const Index b = task / blocks, begin = task % blocks * kRows;
      if (begin == 0) store_new_row(b);
      set_scores(b, begin, begin + kRows, scores + b * size);
    });
    const Index shares = std::min((threads + sequences - 1) / sequences, kv_heads);
    stream.pool().each(sequences * shares, [&](Index task, int) {
      const Index b = task / shares, share = task % shares;
      sum_values(b, kv_heads * share / shares, kv_heads * (share + 1) / shares, scores + b * size);
    });
  }

 private:
  // No task of the step reads it from the cache.
  void store_new_row(Index b) const {
    const Index at = slot_of(op_, op_.positions[b]) * width_;
    std::copy_n(op_.k.row(b), width_, op_.keys[b] + at);
    std::copy_n(op_.v.row(b), width_, op_.values[b] + at);
  }

  // Of all heads with rows [begin, end) of those that sequence b sees, the new one last.
  void set_scores(Index b, Index begin, Index end, T* scores) const {
    const Index past = past_of(op_, b), oldest = op_.positions[b] - past;
    for (Index r = begin; r < std::min(end, past + 1); ++r) {
      const T* key = r < past ? op_.keys[b] + slot_of(op_, oldest + r) * width_ : op_.k.row(b);
      for (Index h = 0; h < heads_; ++h)
        scores[h * stride_ + r] = cpu::dot(dim_, op_.q.row(b) + h * dim_, key + h / group_ * dim_);
    }
  }

  // The result of the query heads that read kv heads [begin, end).
  void sum_values(Index b, Index begin, Index end, T* scores) const {
    constexpr Index kAhead = 16, kBlock = 8;
    const Index past = past_of(op_, b), first = slot_of(op_, op_.positions[b] - past);
    const Index before_wrap = op_.rows == 0 ? past : std::min(past, op_.rows - first);
    const T scale = T(1) / std::sqrt(static_cast<T>(dim_));
    for (Index h = begin * group_; h < end * group_; ++h)
      cpu::softmax_row(scores + h * stride_, past + 1, 0, past + 1, scale);
    std::fill_n(op_.out.row(b) + begin * group_ * dim_, (end - begin) * group_ * dim_, T(0));
    // The cached positions in order, one or two contiguous pieces, then the new one.
    const std::array<Matrix<const T>, 3> pieces = {{{op_.values[b] + first * width_, before_wrap, width_, width_},
                                                    {op_.values[b], past - before_wrap, width_, width_},
                                                    {op_.v.row(b), 1, width_, width_}}};
    Index at = 0;
    for (const auto& piece : pieces) {
      const auto values = piece.block(0, piece.rows, begin * dim_, (end - begin) * dim_);
      for (Index r = 0; r < values.rows; r += kBlock) {
        const Index rows = std::min(kBlock, values.rows - r);
        cpu::prefetch_rows(values, r + kAhead, r + kAhead + kBlock);
        for (Index h = begin * group_; h < end * group_; ++h) {
          cpu::add_product<T>(1, dim_, rows, {scores + h * stride_ + at, 0, 1},
                              values.row(r) + (h / group_ - begin) * dim_, width_, op_.out.row(b) + h * dim_, dim_);
        }
        at += rows;
      }
    }
  }

  const WindowStep<T>& op_;
  Index dim_, width_, heads_, group_;
  Index stride_;  // of the scores of a head
};

}  // namespace

template <class T>
void run(cpu::Stream& stream, const WindowStep<T>& op) {
  ESSH_ASSERT(op.rows == 0 || op.rows >= op.window);
  if (!op.coded) return PlainStep<T>(op).run(stream);
  const Index heads = op.q.cols / op.head_dim;
  stream.pool().each(op.q.rows * heads, [&](Index task, int thread) {
    cpu::Scratch scratch(stream, thread);
    attend_coded(scratch, op, task / heads, task % heads);
  });
}

template void run(cpu::Stream&, const WindowStep<float>&);
template void run(cpu::Stream&, const WindowStep<double>&);

}  // namespace essh
