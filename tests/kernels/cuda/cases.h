#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

namespace essh {

// Tests that go through hundreds of cases run all of them, or with ESSH_EVERY_NTH_CASE=n every n-th, for tools under
// which kernels are slow. An n without common factors with the lengths of a test's loops meets every value of each.
inline int every_nth_case() {
  static const int n = [] {
    const char* value = std::getenv("ESSH_EVERY_NTH_CASE");
    return std::max(1, value ? std::atoi(value) : 1);
  }();
  return n;
}
// Whether to run the next case of this test; the first is always run.
inline bool next_case() {
  static const ::testing::TestInfo* last = nullptr;
  static int cases = 0;
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  if (test != last) cases = 0;
  last = test;
  return cases++ % every_nth_case() == 0;
}

}  // namespace essh
