#include "essh/kernels/clear.h"

#include <cstring>

namespace essh {

void run(cpu::Stream& stream, const Clear& op) {
  stream.pool().split(op.x.size, [&](Index begin, Index end, int) {
    std::memset(op.x.data + begin, 0, static_cast<std::size_t>(end - begin));
  });
}

}  // namespace essh
