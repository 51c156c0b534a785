#include "essh/kernels/linear.h"

#include <algorithm>
#include <limits>

#include "tests/kernels/kernel_checks.h"

namespace essh {
namespace {

// A weight in stored bytes, `skip` bytes into its memory, with rows wider than its columns; the padding is NaN.
class StoredWeight {
 public:
  StoredWeight(Format format, Index rows, Index cols, Rng& rng, Index gap = 0, std::size_t skip = 0)
      : format_(format), rows_(rows), cols_(cols), stride_(cols + gap), skip_(skip) {
    bytes_.resize(skip + static_cast<std::size_t>(stored_bytes(format, rows * stride_)));
    values_.resize(static_cast<std::size_t>(rows * cols));
    for (Index r = 0; r < rows; ++r) {
      for (Index c = 0; c < stride_; ++c) {
        const double stored = put(r * stride_ + c, c < cols ? rng.normal() : double(NAN));
        if (c < cols) values_[static_cast<std::size_t>(r * cols + c)] = stored;
      }
    }
  }
  Weight view() const {
    Weight weight(format_, bytes_.data() + skip_, rows_, cols_);
    weight.stride = stride_;
    return weight;
  }
  double operator()(Index r, Index c) const { return values_[static_cast<std::size_t>(r * cols_ + c)]; }

 private:
  // Stores an element and returns its rounded value.
  double put(Index index, double value) {
    const auto store = [&](auto element) {
      std::memcpy(bytes_.data() + skip_ + static_cast<std::size_t>(index) * sizeof(element), &element, sizeof(element));
      if constexpr (std::is_same_v<decltype(element), double>)
        return element;
      else
        return static_cast<double>(static_cast<float>(element));
    };
    switch (format_) {
      case Format::F64:
        return store(value);
      case Format::F32:
        return store(static_cast<float>(value));
      case Format::BF16:
        return store(BFloat16(static_cast<float>(value)));
      case Format::F16:
        return store(Float16(static_cast<float>(value)));
    }
    return 0;
  }

  Format format_;
  Index rows_, cols_, stride_;
  std::size_t skip_;
  std::vector<std::byte> bytes_;
  std::vector<double> values_;
};

template <class T>
std::vector<Format> formats() {
  if constexpr (std::is_same_v<T, double>)
    return {Format::F64};
  else
    return {Format::F32, Format::BF16, Format::F16};
}
std::size_t element_bytes(Format format) {
  return static_cast<std::size_t>(traits(format).block_bytes);
}

template <class T>
class LinearTest : public ::testing::Test {};
TYPED_TEST_SUITE(LinearTest, FloatTypes);

enum class Addend { None, Other, Itself };

// Every element is within the rounding error of one chain of additions.
template <class T>
void expect_sums(const StridedMatrix<T>& x, std::span<const StoredWeight> weights, const StridedMatrix<T>& y,
                 double scale, const StridedMatrix<T>* addend) {
  constexpr double kRounding = static_cast<double>(std::numeric_limits<T>::epsilon());
  for (Index r = 0; r < x.view.rows; ++r) {
    Index column = 0;
    for (const auto& weight : weights) {
      for (Index n = 0; n < weight.view().rows; ++n, ++column) {
        double exact = addend ? static_cast<double>(addend->view(r, column)) : 0.0, size = std::abs(exact);
        for (Index k = 0; k < x.view.cols; ++k) {
          const double term = scale * static_cast<double>(x.view(r, k)) * weight(n, k);
          exact += term;
          size += std::abs(term);
        }
        ASSERT_NEAR(static_cast<double>(y.view(r, column)), exact,
                    kRounding * size * (2 + std::sqrt(static_cast<double>(x.view.cols))))
            << r << ", " << column << " of " << x.view.rows << " x " << y.view.cols << " x " << x.view.cols;
      }
    }
  }
  EXPECT_TRUE(y.gap_is_intact());
}

TYPED_TEST(LinearTest, AgreesWithTheNaiveProduct) {
  using T = TypeParam;
  cpu::Stream stream(2);
  Rng rng(31);
  for (const Format format : formats<T>()) {
    for (const Index rows : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17, 24, 31, 32, 33, 64, 65, 200}) {
      for (const auto& [inner, outputs] :
           {std::pair<Index, Index>{1, 1}, {7, 5}, {33, 40}, {64, 64}, {131, 67}, {517, 29}, {0, 9}}) {
        for (const Addend kind : {Addend::None, Addend::Other, Addend::Itself}) {
          const double scale = kind == Addend::None ? 1 : -0.5;
          const Index gap = kind == Addend::Other ? 0 : 3;
          const std::vector<StoredWeight> stored = {
              StoredWeight(format, outputs, inner, rng, gap, kind == Addend::Itself ? element_bytes(format) : 0)};
          const Weight weights[] = {stored[0].view()};
          StridedMatrix<T> x(rows, inner), y(rows, outputs, 2), addend(rows, outputs, 5);
          x.normal(rng);
          addend.normal(rng);
          y.fill([] { return NAN; });
          if (kind == Addend::Itself) {
            for (Index r = 0; r < rows; ++r) std::copy_n(addend.view.row(r), outputs, y.view.row(r));
          }
          run(stream, Linear<T>{.x = x.view,
                                .weights = weights,
                                .y = y.view,
                                .scale = scale,
                                .addend = kind == Addend::None    ? Matrix<const T>()
                                          : kind == Addend::Other ? Matrix<const T>(addend.view)
                                                                  : Matrix<const T>(y.view)});
          expect_sums<T>(x, stored, y, scale, kind == Addend::None ? nullptr : &addend);
        }
      }
    }
  }
}

TYPED_TEST(LinearTest, WeightsSideBySideGiveTheBitsOfEachAlone) {
  using T = TypeParam;
  Rng rng(32);
  const auto all = formats<T>();
  for (const Index rows : {1, 4, 16, 17, 70}) {
    for (const Index inner : {5, 64, 301}) {
      std::vector<StoredWeight> stored;
      for (const Index outputs : {3, 1, 50, 64, 7, 129})
        stored.emplace_back(all[stored.size() % all.size()], outputs, inner, rng, 2, element_bytes(all[0]));
      std::vector<Weight> weights;
      Index outputs = 0;
      for (const auto& one : stored) {
        weights.push_back(one.view());
        outputs += one.view().rows;
      }
      StridedMatrix<T> x(rows, inner), y(rows, outputs);
      x.normal(rng);
      cpu::Stream stream(3), alone(1);
      run(stream, Linear<T>{.x = x.view, .weights = weights, .y = y.view});
      expect_sums<T>(x, stored, y, 1, nullptr);
      Index column = 0;
      for (const Weight& weight : weights) {
        StridedMatrix<T> part(rows, weight.rows);
        run(alone, Linear<T>{.x = x.view, .weights = {&weight, 1}, .y = part.view});
        for (Index r = 0; r < rows; ++r) {
          for (Index n = 0; n < weight.rows; ++n) ASSERT_EQ(part.view(r, n), y.view(r, column + n));
        }
        column += weight.rows;
      }
    }
  }
}

// The bits of a row depend on that row alone: not on the other rows or the number of threads.
TYPED_TEST(LinearTest, ARowHasTheSameBitsInAnyCompany) {
  using T = TypeParam;
  Rng rng(33);
  for (const Format format : formats<T>()) {
    for (const Index inner : {1, 3, 4, 7, 8, 9, 15, 31, 33, 64, 100, 255, 256, 257, 301, 777}) {
      for (const Index outputs : {1, 5, 33, 70}) {
        constexpr Index kMost = 70;
        const StoredWeight stored(format, outputs, inner, rng, 1);
        const Weight weight = stored.view();
        StridedMatrix<T> x(kMost, inner), expected(kMost, outputs), addend(kMost, outputs);
        x.normal(rng);
        addend.normal(rng);
        cpu::Stream one(1);
        for (Index r = 0; r < kMost; ++r)
          run(one, Linear<T>{.x = x.view.middle(r, 1),
                             .weights = {&weight, 1},
                             .y = expected.view.middle(r, 1),
                             .scale = 0.3,
                             .addend = Matrix<const T>(addend.view.middle(r, 1))});
        for (const int threads : {1, 2, 3}) {
          cpu::Stream stream(threads);
          for (const Index rows : {2, 3, 4, 5, 9, 15, 16, 17, 29, 32, 33, 70}) {
            StridedMatrix<T> y = addend;
            const Matrix<T> part = y.view.middle(kMost - rows, rows);
            run(stream, Linear<T>{.x = x.view.middle(kMost - rows, rows),
                                  .weights = {&weight, 1},
                                  .y = part,
                                  .scale = 0.3,
                                  .addend = part});
            for (Index r = 0; r < rows; ++r) {
              for (Index n = 0; n < outputs; ++n)
                ASSERT_EQ(part(r, n), expected.view(kMost - rows + r, n))
                    << rows << " rows, " << inner << " inputs, output " << n << ", " << threads << " threads";
            }
          }
        }
      }
    }
  }
}

// One chain of fused multiply-adds from zero, in the order of the inner index.
TYPED_TEST(LinearTest, SumsAreOneChainInOrder) {
  using T = TypeParam;
#ifndef __FP_FAST_FMAF
  GTEST_SKIP() << "no fused multiply-add on this machine";
#endif
  Rng rng(34);
  cpu::Stream stream(2);
  for (const Format format : formats<T>()) {
    for (const Index rows : {1, 4, 7, 16, 17, 40}) {
      for (const Index inner : {1, 13, 64, 300, 515}) {
        const StoredWeight stored(format, 37, inner, rng, 1);
        const Weight weight = stored.view();
        StridedMatrix<T> x(rows, inner), y(rows, 37);
        x.normal(rng);
        run(stream, Linear<T>{.x = x.view, .weights = {&weight, 1}, .y = y.view});
        for (Index r = 0; r < rows; ++r) {
          for (Index n = 0; n < 37; ++n) {
            T sum = 0;
            for (Index k = 0; k < inner; ++k) sum = std::fma(x.view(r, k), static_cast<T>(stored(n, k)), sum);
            ASSERT_EQ(y.view(r, n), sum) << rows << " rows, " << inner << " inputs";
          }
        }
      }
    }
  }
}

// A prefix of a weight's rows and columns, as in a smaller tier, gives the bits of its copy.
TYPED_TEST(LinearTest, APrefixGivesTheBitsOfItsCopy) {
  using T = TypeParam;
  Rng rng(35);
  cpu::Stream stream(2);
  for (const Format format : formats<T>()) {
    for (const Index rows : {1, 5, 40}) {
      for (const auto& [inner, outputs] : {std::pair<Index, Index>{64, 111}, {77, 8}, {301, 130}}) {
        const StoredWeight stored(format, 130, 320, rng, 1, element_bytes(format));
        const Weight prefix = stored.view().top(outputs).left(inner);
        std::vector<std::byte> copy(static_cast<std::size_t>(prefix.bytes()));
        const auto row_bytes = static_cast<std::size_t>(stored_bytes(format, inner));
        for (Index r = 0; r < outputs; ++r)
          std::memcpy(copy.data() + static_cast<std::size_t>(r) * row_bytes, prefix.row(r), row_bytes);
        const Weight dense(format, copy.data(), outputs, inner);
        StridedMatrix<T> x(rows, inner), one(rows, outputs), two(rows, outputs);
        x.normal(rng);
        run(stream, Linear<T>{.x = x.view, .weights = {&prefix, 1}, .y = one.view});
        run(stream, Linear<T>{.x = x.view, .weights = {&dense, 1}, .y = two.view});
        for (Index r = 0; r < rows; ++r) {
          for (Index n = 0; n < outputs; ++n) ASSERT_EQ(one.view(r, n), two.view(r, n));
        }
      }
    }
  }
}

// More rows, outputs and inputs than one packed block holds, added to y itself.
TYPED_TEST(LinearTest, BlocksBeyondTheFirstAgreeWithTheNaiveProduct) {
  using T = TypeParam;
  Rng rng(36);
  cpu::Stream stream(2);
  const Format format = formats<T>().back();
  for (const auto& [rows, outputs, inner] :
       {std::tuple<Index, Index, Index>{2070, 33, 300}, {20, 2100, 300}, {20, 33, 1100}}) {
    std::vector<StoredWeight> stored;
    stored.emplace_back(format, outputs / 2, inner, rng);
    stored.emplace_back(format, outputs - outputs / 2, inner, rng);
    const Weight weights[] = {stored[0].view(), stored[1].view()};
    StridedMatrix<T> x(rows, inner), y(rows, outputs);
    x.normal(rng);
    y.normal(rng);
    const StridedMatrix<T> before = y;
    run(stream, Linear<T>{.x = x.view, .weights = weights, .y = y.view, .scale = 2, .addend = y.view});
    expect_sums<T>(x, stored, y, 2, &before);
  }
}

TEST(Linear, WidensEveryHalf) {
  std::vector<Float16> halves;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    Float16 half;
    half.bits = static_cast<std::uint16_t>(bits);
    halves.push_back(half);
  }
  const Weight weight(Format::F16, halves.data(), 0x10000, 1);
  cpu::Stream stream(1);
  StridedMatrix<float> x(1, 1, 0), y(1, 0x10000, 0);
  x.fill([] { return 1; });
  run(stream, Linear<float>{.x = x.view, .weights = {&weight, 1}, .y = y.view});
  for (Index i = 0; i < 0x10000; ++i) {
    const auto exact = static_cast<float>(halves[static_cast<std::size_t>(i)]);
    if (std::isnan(exact))
      ASSERT_TRUE(std::isnan(y.view(0, i)));
    else
      ASSERT_EQ(y.view(0, i), exact) << "bits " << i;
  }
}

TEST(Linear, RefusesAFormatThatItCannotRead) {
  const double element = 1;
  const Weight weight(Format::F64, &element, 1, 1);
  cpu::Stream stream(1);
  StridedMatrix<float> x(1, 1), y(1, 1);
  EXPECT_THROW(run(stream, Linear<float>{.x = x.view, .weights = {&weight, 1}, .y = y.view}), Error);
}

}  // namespace
}  // namespace essh
