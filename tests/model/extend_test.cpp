#include <gtest/gtest.h>

#include <cmath>

#include "tests/model/small_model.h"

namespace essh {
namespace {

constexpr Index kLongest = 64;

// A sequence's tokens and the memory of its state, as a caller of extend() keeps them.
struct Sequence {
  std::vector<std::int32_t> text;
  Index position = 0;
  std::vector<std::vector<std::byte>> parts;

  Sequence(const ModelConfig& config, std::size_t length, std::uint64_t seed)
      : text(random_tokens(length, config.vocab_size, seed)) {
    for (const auto& part : model_state(config, {.rows = Format::F64})) {
      const Index rows = part.kind == StatePart::Kind::Fixed ? 1
                         : part.window > 0                   ? part.window + kSpareRows
                                                             : kLongest;
      parts.emplace_back(static_cast<std::size_t>(rows * part.columns) * sizeof(double));  // the model's number type
    }
  }
};

struct Step {
  Sequence* sequence;
  Index length;
};

// Hidden states of one pass over the next tokens of several sequences; consecutive sequences of equal length form one
// segment.
std::vector<std::vector<double>> extend(const Model<double>& model, const Weights& weights, Stream& stream,
                                        const std::vector<Step>& steps) {
  const auto count = static_cast<Index>(steps.size());
  const auto parts = steps.front().sequence->parts.size();
  std::vector<Segment> segments;
  std::vector<Index> positions;
  std::vector<std::int32_t> tokens;
  std::vector<std::byte*> states(parts * steps.size());
  for (Index s = 0; s < count; ++s) {
    auto& [sequence, length] = steps[static_cast<std::size_t>(s)];
    if (segments.empty() || segments.back().length != length)
      segments.push_back({static_cast<Index>(tokens.size()), s, 0, length});
    ++segments.back().sequences;
    positions.push_back(sequence->position);
    const auto first = sequence->text.begin() + sequence->position;
    tokens.insert(tokens.end(), first, first + length);
    for (std::size_t part = 0; part < parts; ++part)
      states[part * steps.size() + static_cast<std::size_t>(s)] = sequence->parts[part].data();
  }
  Arena arena(Device::Cpu);
  const Pass pass{.stream = stream, .arena = arena, .capacity = full_capacity(model.config())};
  const SequenceBatch batch{.segments = segments,
                            .count = count,
                            .positions = {positions.data(), positions.data()},
                            .entering = {states.data(), states.data()},
                            .leaving = {states.data(), states.data()},
                            .longest = kLongest};
  const auto hidden = model.extend(pass, weights, {tokens.data(), static_cast<Index>(tokens.size())}, batch);
  std::vector<std::vector<double>> rows;
  for (Index r = 0; r < hidden.rows; ++r) rows.emplace_back(hidden.row(r), hidden.row(r) + hidden.cols);
  for (const auto& step : steps) step.sequence->position += step.length;
  return rows;
}

// Sequences at different positions advance in one pass, by one token or several; every hidden state equals that of a
// forward pass over the whole sequence.
TEST(ModelExtend, SequencesAtDifferentPositionsComputeTheirForwardPasses) {
  auto stream = cpu_stream(2);
  for (const auto& config : {small_config(), small_transformer()}) {
    const Model<double> model(config);
    Parameters<double> parameters(config);
    fill_randomly(parameters, 21);
    std::vector<Sequence> sequences;
    for (const std::size_t length : {40, 33, 26, 52}) sequences.emplace_back(config, length, 100 + length);
    std::vector<std::vector<std::vector<double>>> expected;
    for (const auto& sequence : sequences) {
      Arena arena(Device::Cpu);
      const auto length = static_cast<Index>(sequence.text.size());
      const Pass pass{.stream = stream, .arena = arena, .capacity = full_capacity(config), .length = length};
      const auto hidden = model.forward(pass, parameters.weights(), {sequence.text.data(), length}, nullptr);
      auto& rows = expected.emplace_back();
      for (Index r = 0; r < length; ++r) rows.emplace_back(hidden.row(r), hidden.row(r) + hidden.cols);
    }
    const auto check = [&](const std::vector<std::pair<std::size_t, Index>>& plan) {
      std::vector<Step> steps;
      std::vector<std::pair<std::size_t, Index>> places;  // sequence and position of each row
      for (const auto& [who, length] : plan) {
        for (Index i = 0; i < length; ++i) places.emplace_back(who, sequences[who].position + i);
        steps.push_back({&sequences[who], length});
      }
      const auto rows = extend(model, parameters.weights(), stream, steps);
      ASSERT_EQ(rows.size(), places.size());
      for (std::size_t r = 0; r < rows.size(); ++r) {
        const auto& [who, position] = places[r];
        const auto& whole = expected[who][static_cast<std::size_t>(position)];
        for (std::size_t c = 0; c < whole.size(); ++c)
          ASSERT_NEAR(rows[r][c], whole[c], 1e-9) << "sequence " << who << " at " << position;
      }
    };
    // Prompts of different lengths, one sequence left at its start; then all advance together, past the window.
    check({{0, 17}, {2, 3}, {1, 1}});
    check({{3, 1}, {0, 1}, {1, 1}, {2, 1}});
    check({{3, 1}, {1, 1}, {0, 4}, {2, 4}});
    check({{2, 9}, {3, 30}});
    for (int step = 0; step < 5; ++step) check({{0, 1}, {1, 1}, {2, 1}, {3, 1}});
    check({{1, 20}, {3, 6}, {0, 6}});
    EXPECT_EQ(sequences[0].position, 33);
    EXPECT_EQ(sequences[1].position, 28);
    EXPECT_EQ(sequences[2].position, 22);
    EXPECT_EQ(sequences[3].position, 43);
  }
}

}  // namespace
}  // namespace essh
