#pragma once
#include "essh/tensor/matrix.h"

// Elementary functions over arrays, vectorised for float if Highway was found. y may alias x. Each result depends on
// its argument only, never on its position in the array. NaN gives NaN; results below the smallest normal number may be
// zero.
namespace essh::cpu {

void exp(Index count, const float* x, float* y);
void exp(Index count, const double* x, double* y);
// Argument in double, result rounded once: e^x keeps full relative accuracy for large |x|.
void exp_wide(Index count, const double* x, float* y);
void exp_wide(Index count, const double* x, double* y);
// 1 - e^{-x}, without cancellation for small x.
void one_minus_exp(Index count, const float* x, float* y);
void one_minus_exp(Index count, const double* x, double* y);
void sigmoid(Index count, const float* x, float* y);
void sigmoid(Index count, const double* x, double* y);
// log(1 + e^x).
void softplus(Index count, const float* x, float* y);
void softplus(Index count, const double* x, double* y);

// Cosine and sine of angles of any magnitude.
void cos_sin(Index count, const double* angle, float* cosine, float* sine);
void cos_sin(Index count, const double* angle, double* cosine, double* sine);

}  // namespace essh::cpu
