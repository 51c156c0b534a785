#pragma once
#include "essh/device/stream.h"

namespace essh {

enum class Rotation { Forward, Inverse };

// Rotary position embedding in the half-split layout, in place: for each head, column i < head_dim/2 pairs with column
// i + head_dim/2 and rotates by position * theta^(-2i/head_dim). The inverse rotation is the gradient.
template <class T>
struct Rope {
  Matrix<T> x;  // (sequences * length) x (heads * head_dim)
  Index length;
  Index head_dim;
  Vector<const Index> first;  // position of each sequence's first row; empty for zero
  double theta;
  Rotation rotation = Rotation::Forward;
};

template <class T>
void run(cpu::Stream&, const Rope<T>&);
template <class T>
void run(cuda::Stream&, const Rope<T>&);

}  // namespace essh
