#include "essh/kernels/draw_token.h"

#include <cstring>

#include "tests/kernels/cuda/twin_matrix.h"
#include "tests/kernels/draw_checks.h"

namespace essh {
namespace {

// Rows of an odd stride, behind an odd number of elements: aligned to nothing but floats.
Array<float> upload_rows(const StridedMatrix<float>& logits) {
  Array<float> memory(Device::Cuda, std::ssize(logits.storage) + 1, "test");
  gpu().copy(memory.data() + 1, logits.storage.data(), logits.storage.size() * sizeof(float));
  return memory;
}

// Tokens are those of sorting everything. Where exp() rounds otherwise than on the host, a random number that falls on
// the boundary of two tokens may draw its neighbour.
void expect_draws(Index vocabulary, std::uint64_t seed, Index most = 1 << 20) {
  if (!next_case()) return;
  DrawBatch batch(vocabulary, seed, most);
  const auto count = std::ssize(batch.options);
  const auto memory = upload_rows(batch.logits);
  const TwinVector<DrawOptions> options(batch.options);
  auto changes = batch.changes;
  changes.emplace_back();  // never an empty vector
  const TwinVector<LogitChange> device_changes(changes);
  Array<DrawnToken> device_drawn(Device::Cuda, count, "test"),
      device_top(Device::Cuda, count * DrawBatch::kMostAlternatives, "test");
  std::vector<DrawnToken> drawn(batch.options.size()), top(batch.options.size() * DrawBatch::kMostAlternatives), again;
  for (int round = 0; round < 2; ++round) {
    run(gpu(), DrawToken{.logits = {memory.data() + 1, batch.logits.view.rows, vocabulary, batch.logits.view.stride},
                         .options = options.view(),
                         .changes = device_changes.view(),
                         .drawn = device_drawn.view(),
                         .top = dense(device_top.data(), count, DrawBatch::kMostAlternatives)});
    gpu().copy(drawn.data(), device_drawn.data(), drawn.size() * sizeof(DrawnToken));
    gpu().copy(top.data(), device_top.data(), top.size() * sizeof(DrawnToken));
    if (round == 0) again = drawn;
  }
  EXPECT_EQ(std::memcmp(again.data(), drawn.data(), drawn.size() * sizeof(DrawnToken)), 0) << "two draws differ";
  for (std::size_t i = 0; i < drawn.size(); ++i) {
    const auto expected = batch.expected(i);
    EXPECT_TRUE(drawn[i].token == expected || batch.almost_drawn(i, drawn[i].token))
        << batch.name(i) << ": " << drawn[i].token << " instead of " << expected;
    batch.expect_scored(i, drawn[i], std::span(top).subspan(i * DrawBatch::kMostAlternatives));
  }
}

TEST(DrawTokenCuda, DrawsWhatSortingDraws) {
  ESSH_NEEDS_GPU();
  for (const Index vocabulary : {1, 2, 31, 1000, 5000}) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) expect_draws(vocabulary, seed);
  }
  for (std::uint64_t seed = 0; seed < 3; ++seed) expect_draws(128256, seed);
}

TEST(DrawTokenCuda, TakesTheLargestVocabulary) {
  ESSH_NEEDS_GPU();
  expect_draws(Index{1} << 24, 1, 3);  // of which the host sorts every row
}

// The number of tokens drawn differently from the CPU, over many random numbers of a row like a language model's: none,
// or next to none.
TEST(DrawTokenCuda, ASeedDrawsTheTextOfTheHost) {
  ESSH_NEEDS_GPU();
  constexpr Index kVocabulary = 128256;
  const Index draws = 4000 / every_nth_case();
  Rng rng(5);
  StridedMatrix<float> logits(1, kVocabulary);
  logits.normal(rng, 3);
  const auto memory = upload_rows(logits);
  std::vector<DrawOptions> list;
  for (Index i = 0; i < draws; ++i)
    list.push_back({.temperature = 1, .top_p = 0.98, .seed = 9, .position = static_cast<std::uint64_t>(2 * i)});
  const TwinVector<DrawOptions> options(list);
  Array<DrawnToken> device_drawn(Device::Cuda, draws, "test");
  run(gpu(), DrawToken{.logits = {memory.data() + 1, 1, kVocabulary, logits.view.stride},
                       .options = options.view(),
                       .changes = {},
                       .drawn = device_drawn.view(),
                       .top = {}});
  std::vector<DrawnToken> drawn(list.size()), expected(list.size());
  gpu().copy(drawn.data(), device_drawn.data(), drawn.size() * sizeof(DrawnToken));
  run(host(), DrawToken{.logits = logits.view,
                        .options = {list.data(), draws},
                        .changes = {},
                        .drawn = {expected.data(), draws},
                        .top = {}});
  int different = 0;
  for (std::size_t i = 0; i < drawn.size(); ++i) different += drawn[i].token != expected[i].token;
  EXPECT_LE(different, 1);
}

}  // namespace
}  // namespace essh
