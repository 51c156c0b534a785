#pragma once
#include <cstddef>

#include "essh/device/stream.h"

namespace essh {

// All bits of x become 0.
struct Clear {
  Vector<std::byte> x;
};

void run(cpu::Stream&, const Clear&);
void run(cuda::Stream&, const Clear&);

template <class T>
void clear(Stream& stream, Vector<T> x) {
  launch(stream, Clear{{reinterpret_cast<std::byte*>(x.data), x.size * static_cast<Index>(sizeof(T))}});
}

}  // namespace essh
