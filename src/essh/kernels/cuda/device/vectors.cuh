#pragma once
#include <utility>

#include "essh/kernels/cuda/device/number.cuh"

// Selects vector or scalar accesses on the host, by alignment.
namespace essh::cuda {

// Number of elements in 16 bytes.
template <class T>
inline constexpr int kWide = 16 / static_cast<int>(sizeof(T));

template <class T>
bool aligned(Matrix<T> m, int count) {
  return m.empty() || (reinterpret_cast<std::uintptr_t>(m.data) % (sizeof(T) * count) == 0 && m.stride % count == 0 &&
                       m.cols % count == 0);
}
template <class T>
bool aligned(Vector<T> v, int count) {
  return v.empty() || reinterpret_cast<std::uintptr_t>(v.data) % (sizeof(T) * count) == 0;
}

// Calls body.operator()<N>() with the widest N of T that all operands allow, or 1.
template <class T, class Body, class... Operands>
void with_width(const Body& body, const Operands&... operands) {
  if ((aligned(operands, kWide<T>) && ...))
    body.template operator()<kWide<T>>();
  else
    body.template operator()<1>();
}

}  // namespace essh::cuda
