#include "essh/spectral/hankel_extended.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <span>

#include "essh/base/thread_pool.h"

namespace essh {
namespace {

// hi + lo with |lo| <= ulp(hi) / 2. Each operation has a relative error of about 2^-104. The file is compiled without
// contraction: a fused multiply-add in place of a sum would lose the exact error of that sum.
struct Extended {
  double hi = 0, lo = 0;

  Extended() = default;
  Extended(double value) : hi(value) {}  // NOLINT(google-explicit-constructor): numbers mix
  Extended(double high, double low) : hi(high), lo(low) {}
};

Extended quick_sum(double large, double small) {
  const double sum = large + small;
  return {sum, small - (sum - large)};
}
Extended exact_sum(double a, double b) {
  const double sum = a + b, part = sum - a;
  return {sum, (a - (sum - part)) + (b - part)};
}
Extended exact_product(double a, double b) {
  const double product = a * b;
  return {product, std::fma(a, b, -product)};
}
Extended operator+(Extended a, Extended b) {
  Extended high = exact_sum(a.hi, b.hi);
  const Extended low = exact_sum(a.lo, b.lo);
  high = quick_sum(high.hi, high.lo + low.hi);
  return quick_sum(high.hi, high.lo + low.lo);
}
Extended operator-(Extended a) {
  return {-a.hi, -a.lo};
}
Extended operator-(Extended a, Extended b) {
  return a + -b;
}
Extended operator*(Extended a, Extended b) {
  const Extended product = exact_product(a.hi, b.hi);
  return quick_sum(product.hi, product.lo + (a.hi * b.lo + a.lo * b.hi));
}
Extended operator/(Extended a, Extended b) {
  const double first = a.hi / b.hi;
  Extended rest = a - b * first;
  const double second = rest.hi / b.hi;
  rest = rest - b * second;
  return quick_sum(first, second) + Extended(rest.hi / b.hi);
}
Extended square_root(Extended a) {
  if (a.hi <= 0) return {};
  const double root = std::sqrt(a.hi);
  // One Newton step from a root in double precision.
  return Extended(root) + (a - exact_product(root, root)).hi / (2 * root);
}

using Row = std::vector<Extended>;

Extended dot(std::span<const Extended> a, std::span<const Extended> b) {
  // Independent sums hide the latency of additions.
  constexpr std::size_t kSums = 4;
  Extended sums[kSums];
  std::size_t i = 0;
  for (; i + kSums <= a.size(); i += kSums) {
    for (std::size_t k = 0; k < kSums; ++k) sums[k] = sums[k] + a[i + k] * b[i + k];
  }
  for (; i < a.size(); ++i) sums[0] = sums[0] + a[i] * b[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// y -= factor * x
void subtract(std::span<Extended> y, Extended factor, std::span<const Extended> x) {
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = y[i] - factor * x[i];
}

// Filter k crosses zero k - 1 times over about twelve units of log x, so more filters need closer nodes than in double.
// With 400 and with 1200 nodes the eigenvalues of the first 64 agree to 5e-15.
constexpr int kExtendedNodes = 400;
constexpr double kSmallestExtendedNode = 1e-9;
constexpr double kLargestExtendedNode = 60.0;

// Columns of the factor M of hankel.cpp, Z = M M^T. A node or a weight may be perturbed as long as the powers belong to
// the perturbed node: the matrix keeps its structure, and with it the small eigenvectors. So only the powers need
// more than double.
std::vector<Row> gram_columns(std::int64_t length) {
  const double first = std::log(kSmallestExtendedNode),
               step = (std::log(kLargestExtendedNode) - first) / (kExtendedNodes - 1);
  std::vector<Row> columns;
  for (int node = 0; node < kExtendedNodes; ++node) {
    const double x = std::exp(first + step * node);
    const double trapezoid = (node == 0 || node == kExtendedNodes - 1) ? 0.5 * step : step;
    // The smaller of lambda and 1 - lambda is a double, the other is its exact complement.
    const bool slow = x < 0.5;
    const Extended lambda = slow ? Extended(1) - Extended(-std::expm1(-x)) : Extended(std::exp(-x));
    const Extended rest = Extended(1) - lambda;
    Row column(static_cast<std::size_t>(length));
    Extended value = rest * Extended(std::sqrt(std::exp(-x) * x * trapezoid));
    for (auto& entry : column) {
      entry = value;
      value = value * lambda;
    }
    columns.push_back(std::move(column));
  }
  return columns;
}

// Column-pivoted QR, M P = Q R, up to `rank` columns; the pivot is the column with the largest remainder.
struct Factors {
  std::vector<Row> q;  // columns of Q
  std::vector<Row> r;  // rows of R, columns in the order of M
};
Factors orthogonalise(std::vector<Row> columns, std::size_t rank) {
  Factors f;
  ThreadPool pool(available_cores());
  std::vector<double> left(columns.size());
  const auto norm_of = [](const Row& x) { return square_root(dot(x, x)); };
  for (std::size_t j = 0; j < columns.size(); ++j) left[j] = norm_of(columns[j]).hi;
  const double largest = *std::ranges::max_element(left);
  std::vector<bool> taken(columns.size());
  for (std::size_t step = 0; step < std::min(rank, columns.size()); ++step) {
    const auto pivot = static_cast<std::size_t>(std::ranges::max_element(left) - left.begin());
    if (!(left[pivot] > 1e-30 * largest)) break;
    Row q = columns[pivot];
    // Second orthogonalisation: rounding errors along earlier columns grow as the remainder shrinks.
    for (const auto& earlier : f.q) subtract(q, dot(earlier, q), earlier);
    const Extended scale = Extended(1) / norm_of(q);
    for (auto& value : q) value = value * scale;
    Row r(columns.size());
    taken[pivot] = true;
    pool.each(static_cast<std::int64_t>(columns.size()), [&](std::int64_t index, int) {
      const auto j = static_cast<std::size_t>(index);
      if (taken[j] && j != pivot) return;
      r[j] = dot(q, columns[j]);
      if (j == pivot) return;
      subtract(columns[j], r[j], q);
      left[j] = norm_of(columns[j]).hi;
    });
    left[pivot] = 0;
    f.q.push_back(std::move(q));
    f.r.push_back(std::move(r));
  }
  return f;
}

// One-sided Jacobi: rotates pairs of rows until all are orthogonal, and the columns of `basis` likewise. Keeps the
// digits of small rows. Rows are sorted by decreasing norm.
void make_orthogonal(std::vector<Row>& rows, std::vector<Row>& basis) {
  constexpr double kOrthogonal = 1e-30;
  constexpr int kSweeps = 40;
  bool rotated = true;
  for (int sweep = 0; sweep < kSweeps && rotated; ++sweep) {
    rotated = false;
    for (std::size_t i = 0; i + 1 < rows.size(); ++i) {
      for (std::size_t j = i + 1; j < rows.size(); ++j) {
        const Extended a = dot(rows[i], rows[i]), b = dot(rows[j], rows[j]), c = dot(rows[i], rows[j]);
        if (!(std::abs(c.hi) > kOrthogonal * std::sqrt(a.hi) * std::sqrt(b.hi))) continue;
        rotated = true;
        const Extended zeta = (b - a) / (c * Extended(2));
        const Extended root = square_root(Extended(1) + zeta * zeta);
        const Extended tangent = zeta.hi < 0 ? Extended(-1) / (root - zeta) : Extended(1) / (root + zeta);
        const Extended cosine = Extended(1) / square_root(Extended(1) + tangent * tangent), sine = cosine * tangent;
        for (auto* pair : {&rows, &basis}) {
          auto &x = (*pair)[i], &y = (*pair)[j];
          for (std::size_t k = 0; k < x.size(); ++k) {
            const Extended old = x[k];
            x[k] = cosine * old - sine * y[k];
            y[k] = sine * old + cosine * y[k];
          }
        }
      }
    }
  }
}

}  // namespace

EigenPairs extended_hankel_pairs(std::int64_t length, int channels) {
  // Extra columns: the last filters are not entirely in the span of the first columns.
  constexpr std::size_t kSpare = 24;
  auto f = orthogonalise(gram_columns(length), static_cast<std::size_t>(channels) + kSpare);
  // Q R = (Q U) (U^T R): rotating rows of R and columns of Q alike keeps the product.
  make_orthogonal(f.r, f.q);
  std::vector<Extended> squares;
  for (const auto& row : f.r) squares.push_back(dot(row, row));
  std::vector<std::size_t> order(squares.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return squares[a].hi > squares[b].hi; });
  EigenPairs pairs;
  for (std::size_t k = 0; k < std::min(order.size(), static_cast<std::size_t>(channels)); ++k) {
    pairs.sigma.push_back(squares[order[k]].hi);
    for (const auto& value : f.q[order[k]]) pairs.vectors.push_back(value.hi);
  }
  return pairs;
}

}  // namespace essh
