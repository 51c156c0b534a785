#include "essh/kernels/square_sum.h"

#include <algorithm>

#include "essh/kernels/cpu/reduce.h"

namespace essh {
namespace {
// One thread sums a block, in W within kRun elements: 64 sums of 16 squares each, folded.
constexpr Index kRun = 1024;
constexpr Index kBlock = 64 * kRun;
}  // namespace

template <class W>
void run(cpu::Stream& stream, const SquareSum<W>& op) {
  const Index blocks = (op.x.size + kBlock - 1) / kBlock;
  cpu::Scratch scratch(stream, 0);
  double* sums = scratch.take<double>(blocks);
  stream.pool().split(blocks, [&](Index begin, Index end, int) {
    for (Index block = begin; block < end; ++block) {
      const Index last = std::min(op.x.size, (block + 1) * kBlock);
      double sum = 0;
      for (Index first = block * kBlock; first < last; first += kRun) {
        const W* x = op.x.data + first;
        sum += static_cast<double>(cpu::dot(std::min(kRun, last - first), x, x));
      }
      sums[block] = sum;
    }
  });
  double total = 0;
  for (Index block = 0; block < blocks; ++block) total += sums[block];
  *op.sum += total;
}

template void run(cpu::Stream&, const SquareSum<float>&);
template void run(cpu::Stream&, const SquareSum<double>&);

}  // namespace essh
