#include "essh/model/initialise.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "essh/base/fnv.h"
#include "essh/base/rng.h"
#include "essh/model/config.h"

namespace essh {
namespace {

// Large tensors are filled by several threads.
TEST(Initialise, ATensorIsOneStreamOfItsName) {
  auto config = preset("tiny");
  config.vocab_size = 9000;
  Parameters<float> parameters(config);
  initialise(parameters, config, 5);
  const auto& tensors = parameters.layout().tensors();
  std::size_t random = 0, largest = 0;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const auto& spec = tensors[t];
    const auto values = parameters.tensor(t);
    if (spec.initial.modal || !(spec.initial.deviation > 0)) continue;
    SCOPED_TRACE(spec.name);
    Rng rng(5, fnv1a(spec.name));
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(values[i], static_cast<float>(spec.initial.deviation * rng.normal())) << i;
    ++random;
    largest = std::max(largest, values.size());
  }
  EXPECT_GT(random, 10u);
  EXPECT_GT(largest, std::size_t{1} << 20) << "more than one piece";
}

}  // namespace
}  // namespace essh
