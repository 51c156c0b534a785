#include "bench/openblas.h"

#ifdef ESSH_HAVE_OPENBLAS
#include <cblas.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "essh/base/thread_pool.h"

extern "C" {
char* openblas_get_corename(void);
void openblas_set_num_threads(int);
}
#endif

namespace essh::bench {

OpenBlas measure_openblas() {
#ifdef ESSH_HAVE_OPENBLAS
  constexpr int kSide = 2048;
  std::vector<float> a(kSide * kSide, 0.5f), b(kSide * kSide, 0.25f), c(kSide * kSide);
  openblas_set_num_threads(available_cores());
  double best = 1e30;
  for (int run = 0; run < 3; ++run) {
    const auto start = std::chrono::steady_clock::now();
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, kSide, kSide, kSide, 1.0f, a.data(), kSide, b.data(), kSide,
                0.0f, c.data(), kSide);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return {2.0 * kSide * kSide * kSide / best, openblas_get_corename()};
#else
  return {};
#endif
}

bool run_openblas([[maybe_unused]] const Gemm<float>& op) {
#ifdef ESSH_HAVE_OPENBLAS
  const bool transpose_a = op.transpose_a == Transpose::Yes;
  const auto flag = [](Transpose transpose) { return transpose == Transpose::Yes ? CblasTrans : CblasNoTrans; };
  const auto number = [](Index index) { return static_cast<int>(index); };
  openblas_set_num_threads(available_cores());
  cblas_sgemm(CblasRowMajor, flag(op.transpose_a), flag(op.transpose_b), number(op.c.rows), number(op.c.cols),
              number(transpose_a ? op.a.rows : op.a.cols), 1.0f, op.a.data, number(op.a.stride), op.b.data,
              number(op.b.stride), 0.0f, op.c.data, number(op.c.stride));
  return true;
#else
  return false;
#endif
}

}  // namespace essh::bench
