#pragma once
#include "essh/device/stream.h"

namespace essh {

// y = scale * U V^T approximately, where x = U S V^T: five Newton-Schulz steps from x / |x| move all singular values
// that are not tiny into [0.68, 1.13]. x = 0 gives 0. The products run in T.
template <class T>
void orthogonalise(Stream& stream, Arena& arena, Matrix<const Wide<T>> x, double scale, Matrix<T> y);

}  // namespace essh
