#include "essh/kernels/adamw.h"

#include "essh/kernels/add_scaled.h"
#include "essh/kernels/round_weights.h"
#include "tests/kernels/kernel_checks.h"

namespace essh {
namespace {

template <class T>
class AdamWTest : public ::testing::Test {};
TYPED_TEST_SUITE(AdamWTest, FloatTypes);

// The equations of the header, in double.
struct Reference {
  double weight, first = 0, second = 0;
  void step(double gradient, double rate, double decay, double clip, Index t) {
    const double g = clip * gradient;
    first = 0.9 * first + 0.1 * g;
    second = 0.95 * second + 0.05 * g * g;
    const double mean = first / (1 - std::pow(0.9, t)), square = second / (1 - std::pow(0.95, t));
    weight -= rate * (mean / (std::sqrt(square) + 1e-8) + decay * weight);
  }
};

TYPED_TEST(AdamWTest, FollowsItsEquationsOverSteps) {
  using W = TypeParam;
  Rng rng(1);
  cpu::Stream stream(2);
  for (const Index size : {0, 1, 7, 8, 9, 4099}) {
    for (const bool rounds : {false, true}) {
      StridedMatrix<W> weight(1, size), first(1, size), second(1, size), gradient(1, size);
      weight.normal(rng);
      std::vector<BFloat16> rounded(static_cast<std::size_t>(size));
      std::vector<Reference> exact;
      for (Index i = 0; i < size; ++i) exact.push_back({static_cast<double>(weight.view(0, i))});
      for (Index t = 1; t <= 4; ++t) {
        gradient.normal(rng, 0.1);
        run(stream, AdamW<W>{.weight = weight.vector(),
                             .first = first.vector(),
                             .second = second.vector(),
                             .gradient = gradient.vector(),
                             .rounded = rounds ? Vector<BFloat16>{rounded.data(), size} : Vector<BFloat16>{},
                             .rate = 0.01,
                             .beta1 = 0.9,
                             .beta2 = 0.95,
                             .eps = 1e-8,
                             .decay = 0.1,
                             .clip = 0.7,
                             .step = t});
        for (Index i = 0; i < size; ++i) {
          auto& e = exact[static_cast<std::size_t>(i)];
          e.step(static_cast<double>(gradient.view(0, i)), 0.01, 0.1, 0.7, t);
          expect_close(weight.view(0, i), e.weight, "weight");
          expect_close(first.view(0, i), e.first, "first moment");
          expect_close(second.view(0, i), e.second, "second moment");
          if (rounds) {
            EXPECT_EQ(rounded[static_cast<std::size_t>(i)].bits, BFloat16(static_cast<float>(weight.view(0, i))).bits);
          }
        }
      }
    }
  }
}

TEST(AddScaled, RoundsOnce) {
  auto stream = cpu_stream(2);
  Rng rng(8);
  std::vector<float> x(1027), y(x.size()), sum(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(rng.normal());
    y[i] = static_cast<float>(rng.normal());
  }
  const auto view = [](auto& values) { return Vector{values.data(), std::ssize(values)}; };
  launch(stream, AddScaled<float>{.x = view(x), .y = view(y), .factor = 0.3f, .sum = view(sum)});
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto exact = static_cast<double>(x[i]) + static_cast<double>(0.3f) * static_cast<double>(y[i]);
    ASSERT_EQ(sum[i], static_cast<float>(exact)) << i;
  }
  launch(stream, AddScaled<float>{.x = view(x), .y = view(y), .factor = 0.3f, .sum = view(x)});
  EXPECT_EQ(x, sum) << "in place";
}

TEST(RoundWeights, RoundsToNearestEven) {
  auto stream = cpu_stream(2);
  const std::vector<float> from = {0, -0.0f, 1, 1.00390625f, 1.01171875f, -3.14159f, 1e-40f, 3e38f, INFINITY};
  std::vector<BFloat16> to(from.size());
  launch(stream, RoundWeights{.from = {from.data(), static_cast<Index>(from.size())},
                              .to = {to.data(), static_cast<Index>(to.size())}});
  for (std::size_t i = 0; i < from.size(); ++i) EXPECT_EQ(to[i].bits, BFloat16(from[i]).bits) << from[i];
  EXPECT_EQ(static_cast<float>(to[3]), 1.0f) << "a tie goes to the even neighbour";
  EXPECT_EQ(static_cast<float>(to[4]), 1.015625f) << "a tie goes to the even neighbour";
}

}  // namespace
}  // namespace essh
