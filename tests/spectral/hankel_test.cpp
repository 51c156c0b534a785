#include "essh/spectral/hankel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <string>

#include "essh/base/error.h"

namespace essh {
namespace {

double dot(std::span<const double> a, std::span<const double> b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

TEST(Hankel, EveryFilterOfThePaperHasItsSignChanges) {
  const HankelFilters filters = hankel_filters(2048, 32);
  ASSERT_EQ(filters.channels(), 32);
  for (int k = 0; k < 32; ++k) {
    EXPECT_EQ(sign_changes(filters.filter(k)), k);
    EXPECT_GT(filters.filter(k)[0], 0) << "channel " << k + 1;
    EXPECT_NEAR(dot(filters.filter(k), filters.filter(k)), 1, 1e-13);
    if (k > 0) {
      EXPECT_LT(filters.sigma[k], filters.sigma[k - 1]);
    }
    for (int other = 0; other < k; ++other)
      EXPECT_NEAR(dot(filters.filter(k), filters.filter(other)), 0, 1e-13) << k + 1 << " and " << other + 1;
  }
}

// Vectors in double have the right number of sign changes up to the 52nd, but the error of the 48th is already 0.02.
TEST(Hankel, SixtyFourFiltersOfThePapersLengthAreResolved) {
  const HankelFilters filters = hankel_filters(2048, 64), few = hankel_filters(2048, 32);
  for (int k = 0; k < 64; ++k) {
    EXPECT_EQ(sign_changes(filters.filter(k)), k);
    EXPECT_NEAR(dot(filters.filter(k), filters.filter(k)), 1, 1e-13);
    for (int other = 0; other < k; ++other)
      EXPECT_NEAR(dot(filters.filter(k), filters.filter(other)), 0, 1e-13) << k + 1 << " and " << other + 1;
    if (k < 24) {
      EXPECT_NEAR(dot(filters.filter(k), few.filter(k)), 1, 1e-11) << "double agrees where it can";
    }
  }
  // Computed with 1200 nodes instead of 400.
  EXPECT_NEAR(filters.sigma[31] / 9.2826630372829995e-19, 1, 1e-12);
  EXPECT_NEAR(filters.sigma[63] / 9.7027790970101901e-39, 1, 1e-12);
}

TEST(Hankel, SpectrumOfThePaper) {
  const HankelFilters filters = hankel_filters(2048, 9);
  const double first_eight = std::accumulate(filters.sigma.begin(), filters.sigma.begin() + 8, 0.0);
  EXPECT_NEAR(filters.sigma[8] / filters.sigma[0], 2.2888e-6, 0.00005e-6);
  EXPECT_NEAR((filters.trace - first_eight) / filters.trace, 3.3093e-6, 0.00005e-6);
}

// Eigenvalue, first and last entry of each eigenvector of the 16 x 16 matrix, computed with 80 digits.
TEST(Hankel, AgreesWithHighPrecision) {
  struct Row {
    double sigma, first, last;
  };
  constexpr Row kExact[] = {
      {0.36039089550669697, 0.9594812090812879, 0.0014982103910325904},
      {0.022410076722209423, 0.26135654577580447, -0.022742879275823301},
      {0.0026578767562320215, 0.096307585826908069, 0.10336114808993276},
      {0.00033975237062630021, 0.039661903090186266, -0.2205914658096873},
      {3.4068559815763044e-5, 0.014723328409101128, 0.31474258549352305},
      {2.6005071182111933e-6, 0.0046689626408018501, -0.3745340368578102},
      {1.5644238375508204e-7, 0.001291310979288733, 0.40355739460200285},
      {7.5501587693157074e-9, 0.00031585533172279368, -0.40338030547546424},
      {2.9346967172920327e-10, 6.8660710698911985e-5, 0.3761017497886395},
      {9.1432856072881772e-12, 1.3257422554018173e-5, -0.32637578125093432},
      {2.2550558032810956e-13, 2.262586597740287e-6, 0.26171006689611245},
      {4.3080351155415023e-15, 3.3795147619876957e-7, -0.19154986306798445},
      {6.1519769084298902e-17, 4.3432733380703269e-8, 0.12551967833982314},
      {6.1836272193759054e-19, 4.6634019210849957e-9, -0.071348213544872709},
      {3.9034208717479653e-21, 3.9533976750059451e-10, 0.033180972836057836},
      {1.1643982567470577e-23, 2.2963652397646127e-11, -0.010935880918032728},
  };
  const HankelFilters filters = hankel_filters(16, 16);
  for (int k = 0; k < 16; ++k) {
    EXPECT_NEAR(filters.sigma[k] / kExact[k].sigma, 1, 1e-13) << k + 1;
    EXPECT_NEAR(filters.filter(k)[0] / kExact[k].first, 1, 1e-12) << k + 1;
    EXPECT_NEAR(filters.filter(k)[15], kExact[k].last, 1e-14) << k + 1;
  }
}

// The closed form of the entries, which the quadrature never sees.
TEST(Hankel, FiltersAreEigenvectorsOfTheClosedForm) {
  constexpr int kLength = 300;
  const HankelFilters filters = hankel_filters(kLength, 12);
  double trace = 0;
  for (int s = 1; s <= kLength; ++s) trace += 2.0 / ((2.0 * s - 1) * (2.0 * s) * (2.0 * s + 1));
  EXPECT_NEAR(filters.trace, trace, 1e-15);
  for (int k = 0; k < 12; ++k) {
    const auto filter = filters.filter(k);
    for (int s = 1; s <= kLength; ++s) {
      double product = 0;
      for (int t = 1; t <= kLength; ++t) product += 2.0 / ((s + t - 1.0) * (s + t) * (s + t + 1.0)) * filter[t - 1];
      ASSERT_NEAR(product, filters.sigma[k] * filter[s - 1], 1e-14) << "channel " << k + 1 << ", row " << s;
    }
  }
}

TEST(Hankel, FewerChannelsAreAPrefix) {
  const HankelFilters all = hankel_filters(256, 20);
  const HankelFilters few = hankel_filters(256, 5);
  EXPECT_EQ(few.samples, std::vector<double>(all.samples.begin(), all.samples.begin() + 5 * 256));
}

TEST(Hankel, SignChangesLeaveZerosOut) {
  EXPECT_EQ(sign_changes({}), 0);
  EXPECT_EQ(sign_changes(std::vector<double>{0, 0}), 0);
  EXPECT_EQ(sign_changes(std::vector<double>{1, 0, 2, -0.0, -1, 0, 0, 1e-300, -1e-300}), 3);
}

TEST(Hankel, RefusesWhatItCannotResolve) {
  try {
    hankel_filters(64, 60);
    FAIL() << "60 filters of length 64 are beyond double precision";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Usage);
    EXPECT_NE(std::string(error.what()).find("60 channels asked"), std::string::npos) << error.what();
  }
  EXPECT_THROW(hankel_filters(8, 9), Error);
  EXPECT_THROW(hankel_filters(2048, 0), Error);
  EXPECT_THROW(hankel_filters(7, 1), Error);
  EXPECT_THROW(hankel_filters(-1, 1), Error);
  EXPECT_THROW(hankel_filters(kMaxFilterLength + 1, 1), Error);
  EXPECT_EQ(hankel_filters(8, 8).channels(), 8);
}

}  // namespace
}  // namespace essh
