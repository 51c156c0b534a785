#pragma once
#include "essh/base/rng.h"
#include "essh/device/memory.h"

namespace essh::bench {

// A dense matrix of values in [low, high): every page touched, cheap to fill even at hundreds of megabytes.
template <class T>
class Operand {
 public:
  Operand(Index rows, Index cols, double low = -1, double high = 1)
      : memory_(Device::Cpu, static_cast<std::size_t>(rows * cols) * sizeof(T), "a benchmark"),
        rows_(rows),
        cols_(cols) {
    constexpr Index kDrawn = 4096;
    Rng rng(1);
    T* data = memory_.as<T>();
    for (Index i = 0; i < rows * cols; ++i)
      data[i] = i < kDrawn ? static_cast<T>(low + (high - low) * rng.uniform()) : data[i - kDrawn];
  }
  Matrix<T> view() const { return dense(memory_.as<T>(), rows_, cols_); }
  Vector<T> vector() const { return {memory_.as<T>(), rows_ * cols_}; }

 private:
  Buffer memory_;
  Index rows_, cols_;
};

}  // namespace essh::bench
