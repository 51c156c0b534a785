#pragma once
#include <array>
#include <map>
#include <memory>
#include <string>

#include "essh/device/cuda/stream.h"

namespace essh::cuda {

enum class MatmulType { Float32, BFloat16 };

// result = alpha * op(left) * op(right) + beta * addend, all column-major: element (i, j) is at j * stride + i, and a
// transposed operand is stored as its transpose. Sums are float32.
struct Matmul {
  struct Operand {
    const void* data;
    Index stride;
    bool turned;
  };
  MatmulType input, output;
  Operand left, right;  // rows x inner, inner x columns
  Index rows, columns, inner;
  float alpha, beta;
  const void* addend;
  Index addend_stride;
  void* result;
  Index result_stride;
  bool columns_vary = false;  // from product to product, see MatmulPlans
};

// Matrix products by cuBLASLt. The first product of a shape autotunes: times the algorithms that the library suggests
// on this device, drops those that disagree with the first, and keeps the fastest among the stream's choices. Restoring
// saved choices restores the bits. A shape includes the alignment of strides and addresses, not their values: a slice
// of a weight and its copy use the same algorithm.
//
// If the columns vary, autotuning every number of them would take longer than the products, and every other algorithm
// is a kernel to load. All numbers of columns up to a power of two, and above half of it, share one algorithm: the one
// tuned for the first of them, or up to kUntunedColumns the library's first suggestion for the largest. Products that
// it cannot compute take the first suggestion for themselves.
class MatmulPlans {
 public:
  static constexpr Index kUntunedColumns = 512;

  explicit MatmulPlans(Stream& stream);
  ~MatmulPlans();
  void multiply(const Matmul& product);

 private:
  struct Context;
  struct Plan;
  // Shape and strides.
  using Key = std::array<Index, 12>;

  Plan& plan(const Matmul& product);
  void choose(const Matmul& product, Plan& plan);

  Stream& stream_;
  std::unique_ptr<Context> context_;
  std::map<Key, std::unique_ptr<Plan>> plans_;
  std::map<std::string, std::string> suggested_;  // algorithms of products that are not tuned, by shape
};

// Largest |a - b| and largest |a| of two column-major rows x columns matrices without gaps.
struct Difference {
  float largest_gap, largest;
};
Difference compare(Stream& stream, MatmulType type, const void* a, const void* b, Index elements);
// Reads this memory, so that caches hold it instead of whatever they held before.
void fill_cache(Stream& stream, const void* from, std::size_t bytes);

}  // namespace essh::cuda
