#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "essh/train/ordering.h"
#include "tests/comm/thread_ranks.h"
#include "tests/train/trainer_fixture.h"

namespace essh {
namespace {

using comm::testing::on_groups;

struct RanksTest : TrainerTest {
  struct Outcome {
    Snapshot end;
    std::vector<StepReport> reports;
    std::map<std::string, double> losses;
  };

  // Trains `steps` steps on `ranks` ranks, from `from` if given.
  Outcome train(const Recipe& recipe, int ranks, Index steps, const Snapshot* from = nullptr) {
    Outcome outcome;
    on_groups(ranks, [&](comm::Group& group) {
      Setup setup(recipe, 1);
      auto trainer = setup.trainer(group);
      if (from) trainer->resume(group.rank() == 0 ? *from : Snapshot{});
      for (Index i = 0; i < steps; ++i) {
        const auto report = trainer->step();
        if (group.rank() == 0) outcome.reports.push_back(report);
      }
      auto losses = trainer->validate();
      auto end = trainer->snapshot();
      if (group.rank() > 0) {
        EXPECT_TRUE(end.states.at("first").empty());
        return;
      }
      outcome.losses = std::move(losses);
      outcome.end = std::move(end);
    });
    return outcome;
  }
};

// Largest difference, relative to the largest value.
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double most = 0, largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
    largest = std::max(largest, std::abs(static_cast<double>(a[i])));
  }
  return most / largest;
}

TEST_F(RanksTest, InFloat32TheResidualsTypeChangesNoBit) {
  const auto wide = train(recipe(), 2, 6), plain = train(recipe({"model.residual_in_fp32=false"}), 2, 6);
  EXPECT_TRUE(same_bits(plain.end.weights, wide.end.weights));
  EXPECT_TRUE(same_bits(plain.end.states, wide.end.states));
  EXPECT_TRUE(wide.end.config.residual_in_fp32);
  EXPECT_FALSE(plain.end.config.residual_in_fp32);
}

TEST_F(RanksTest, AnyNumberOfRanksMakesTheSameSteps) {
  // Without ordering: units of nearly equal importance may swap by rounding.
  for (const auto& [algorithm, ranks] : {std::pair<const char*, int>{"adamw", 2},
                                         {"adamw", 4},
                                         {"muon", 2},
                                         {"muon", 4},
                                         {"muon with slopes", 2},
                                         {"muon jointly with slopes", 2}}) {
    SCOPED_TRACE(fmt::format("{} on {}", algorithm, ranks));
    const std::string_view words = algorithm;
    const auto settings =
        recipe({"elastic.ordering_period=0", fmt::format("optimizer.algorithm={}", words.substr(0, words.find(' '))),
                fmt::format("model.slopes={}", words.ends_with("slopes")),
                fmt::format("elastic.joint={}", words.find("jointly") != words.npos)});
    const auto alone = train(settings, 1, 12);
    const auto many = train(settings, ranks, 12);
    for (std::size_t i = 0; i < alone.reports.size(); ++i) {
      const auto &a = alone.reports[i], &b = many.reports[i];
      EXPECT_NEAR(b.full_loss, a.full_loss, 2e-5 * a.full_loss) << "step " << a.step;
      EXPECT_NEAR(b.reduced_loss, a.reduced_loss, 2e-5 * a.full_loss) << "step " << a.step;
      EXPECT_NEAR(b.norm, a.norm, 1e-4 * a.norm) << "step " << a.step;
      EXPECT_EQ(b.full_tokens, a.full_tokens);
      EXPECT_EQ(b.micro_batches, a.micro_batches);
      EXPECT_NEAR(b.flops, a.flops, 1e-9 * a.flops);
    }
    EXPECT_LT(distance(alone.end.weights, many.end.weights), 1e-3);
    EXPECT_LT(distance(alone.end.states.at("first"), many.end.states.at("first")), 1e-3);
    EXPECT_LT(distance(alone.end.states.at("second"), many.end.states.at("second")), 1e-3);
    for (std::size_t i = 0; i < alone.end.squares.size(); ++i)
      EXPECT_NEAR(many.end.squares[i], alone.end.squares[i], 1e-4 * alone.end.squares[i] + 1e-12);
    for (const auto& [tier, loss] : alone.losses) EXPECT_NEAR(many.losses.at(tier), loss, 1e-4 * loss) << tier;
    EXPECT_EQ(many.end.position, alone.end.position);
  }
}

TEST_F(RanksTest, CalibrationIsSharedAndEveryRankGetsItsOrder) {
  const auto calibrated = [&](int ranks) {
    std::vector<std::vector<float>> weights(static_cast<std::size_t>(ranks));
    std::vector<double> squares;
    std::mutex mutex;
    on_groups(ranks, [&](comm::Group& group) {
      Setup setup(recipe({"elastic.calibration_tokens=1000"}), 1);
      const auto trainer = setup.trainer(group);
      trainer->calibrate();
      const auto parameters = trainer->parameters();
      auto snapshot = trainer->snapshot();
      const std::lock_guard lock(mutex);
      weights[static_cast<std::size_t>(group.rank())] = {parameters.data(),
                                                         parameters.data() + parameters.layout().size()};
      if (group.rank() == 0) squares = std::move(snapshot.squares);
    });
    for (const auto& one : weights) EXPECT_TRUE(same_bits(one, weights.front()));
    // Sorted, because units of nearly equal importance may swap by rounding.
    std::sort(squares.begin(), squares.end());
    return squares;
  };
  const auto alone = calibrated(1), pair = calibrated(2);
  ASSERT_EQ(alone.size(), pair.size());
  EXPECT_GT(alone.front(), 0);
  for (std::size_t i = 0; i < alone.size(); ++i) EXPECT_NEAR(pair[i], alone[i], 1e-6 * alone[i]);
}

TEST_F(RanksTest, TheFirstStepAgreesToRounding) {
  const auto settings = recipe({"elastic.warmup_tokens=0", "elastic.kl=1"});
  const auto alone = train(settings, 1, 1), pair = train(settings, 2, 1);
  EXPECT_LT(distance(alone.end.states.at("first"), pair.end.states.at("first")), 2e-6);
  EXPECT_NEAR(pair.reports[0].norm, alone.reports[0].norm, 1e-6 * alone.reports[0].norm);
}

TEST_F(RanksTest, TwoRanksTwiceAreTheSameBits) {
  const auto a = train(recipe(), 2, 12), b = train(recipe(), 2, 12);
  EXPECT_TRUE(same_bits(a.end.weights, b.end.weights));
  EXPECT_TRUE(same_bits(a.end.states, b.end.states));
  EXPECT_EQ(a.end.squares, b.end.squares);
}

TEST_F(RanksTest, ResumingOnAsManyRanksChangesNoBit) {
  for (const char* algorithm : {"optimizer.algorithm=adamw", "optimizer.algorithm=muon"}) {
    SCOPED_TRACE(algorithm);
    const auto settings = recipe({algorithm});
    const auto straight = train(settings, 2, 12);
    const auto part = train(settings, 2, 7);
    const auto rest = train(settings, 2, 5, &part.end);
    EXPECT_TRUE(same_bits(straight.end.weights, rest.end.weights));
    EXPECT_TRUE(same_bits(straight.end.states, rest.end.states));
    EXPECT_EQ(straight.end.squares, rest.end.squares);
    EXPECT_EQ(straight.end.position, rest.end.position);
  }
}

TEST_F(RanksTest, MomentsKeptForRefinementReachEveryRank) {
  for (const char* algorithm : {"optimizer.algorithm=adamw", "optimizer.algorithm=muon"}) {
    SCOPED_TRACE(algorithm);
    const auto settings =
        recipe({algorithm, "run.steps=4", "refine.steps=4", "refine.moments=kept", "refine.order=continued"});
    const auto end = train(settings, 1, 4).end;
    const auto refined = [&](int ranks, bool keeps) {
      Snapshot made;
      on_groups(ranks, [&](comm::Group& group) {
        Setup setup(settings, 1);
        Trainer<float> trainer(make_refinement(setup.recipe, setup.config), setup.recipe, setup.config, setup.data,
                               setup.stream, group);
        Parameters<float> start(setup.config);
        std::ranges::copy(end.weights, start.data());
        trainer.start(start);
        if (keeps) trainer.inherit(group.rank() == 0 ? end : Snapshot());
        trainer.step();
        auto snapshot = trainer.snapshot();
        if (group.rank() == 0) made = std::move(snapshot);
      });
      return made;
    };
    const auto alone = refined(1, true), pair = refined(2, true), fresh = refined(2, false);
    EXPECT_LT(distance(alone.states.at("first"), pair.states.at("first")), 1e-3);
    EXPECT_LT(distance(alone.weights, pair.weights), 1e-3);
    EXPECT_GT(distance(alone.states.at("first"), fresh.states.at("first")), 0.1);
  }
}

TEST_F(RanksTest, ACheckpointGoesOnWithAnotherNumberOfRanks) {
  const auto settings = recipe({"elastic.ordering_period=0"});
  const auto straight = train(settings, 1, 12);
  auto state = train(settings, 2, 4).end;
  state = train(settings, 1, 4, &state).end;
  const auto changed = train(settings, 2, 4, &state);
  EXPECT_EQ(changed.end.step, 12);
  EXPECT_EQ(changed.end.position, straight.end.position);
  EXPECT_LT(distance(straight.end.weights, changed.end.weights), 1e-3);
  EXPECT_LT(distance(straight.end.states.at("first"), changed.end.states.at("first")), 1e-3);
  // Resuming on another number of ranks loses nothing: the snapshot equals the one resumed from.
  on_groups(2, [&](comm::Group& group) {
    Setup setup(settings, 1);
    auto trainer = setup.trainer(group);
    trainer->resume(group.rank() == 0 ? state : Snapshot{});
    const auto again = trainer->snapshot();
    if (group.rank() > 0) return;
    EXPECT_TRUE(same_bits(again.weights, state.weights));
    EXPECT_TRUE(same_bits(again.states, state.states));
    EXPECT_EQ(again.squares, state.squares);
    EXPECT_EQ(again.sampler, state.sampler);
  });
}

TEST_F(RanksTest, OrderingMovesTheMomentsOfAllRanks) {
  const auto settings = recipe();
  auto before = train(settings, 1, 3).end;
  // Moments equal to the weights show that ordering moves both alike.
  for (std::size_t i = 0; i < before.weights.size(); ++i) before.states.at("first")[i] = before.weights[i];
  const auto order_in = [&](int ranks) {
    const ParameterLayout layout(before.config);
    std::vector<float> moved;
    on_groups(ranks, [&](comm::Group& group) {
      auto stream = cpu_stream(1);
      Arena arena(Device::Cpu);
      Shards shards(layout, group, stream);
      Array<float> shares(Device::Cpu, shards.held(), "shares");
      const Vector<const float> weights{before.weights.data(), layout.size()};
      shards.keep(weights, 0, layout.size(), shares.view());
      const auto order = importance_order(
          stream, arena, layout, weights,
          dense<const double>(before.squares.data(), before.config.num_hidden_layers, before.config.intermediate_size));
      order_units(stream, arena, layout, order, shards, shares.view());
      const auto whole = shards.whole(shares.view(), 0, layout.size(), arena);
      if (group.rank() == 0) moved.assign(whole.data, whole.data + whole.size);
    });
    return moved;
  };
  const auto alone = order_in(1);
  EXPECT_FALSE(same_bits(alone, before.weights));
  EXPECT_TRUE(same_bits(alone, order_in(2)));
  EXPECT_TRUE(same_bits(alone, order_in(3)));
}

TEST_F(RanksTest, ShardsCoverTheParametersOnceAndNeverTooEarly) {
  const Setup setup(recipe(), 1);
  const ParameterLayout layout(setup.config);
  for (const int ranks : {1, 2, 3}) {
    std::vector<int> owners(static_cast<std::size_t>(layout.size()));
    std::mutex mutex;
    on_groups(ranks, [&](comm::Group& group) {
      auto stream = cpu_stream(1);
      const Shards shards(layout, group, stream);
      const std::lock_guard lock(mutex);
      Index end = layout.size(), last_layer = layout.size();
      EXPECT_GT(shards.buckets().size(), ranks > 1 ? 3u : 0u);
      for (const auto& bucket : shards.buckets()) {
        EXPECT_EQ(bucket.end, end);
        EXPECT_LE(bucket.layer, last_layer);
        end = bucket.begin;
        last_layer = bucket.layer;
        for (Index i = bucket.own_begin; i < bucket.own_end; ++i) ++owners[static_cast<std::size_t>(i)];
        for (std::size_t tensor = 0; tensor < layout.tensors().size(); ++tensor) {
          const Index begin = layout.offset(tensor);
          const Index size = layout.tensors()[tensor].rows * layout.tensors()[tensor].cols;
          if (begin >= bucket.end || begin + size <= bucket.begin) continue;
          EXPECT_GE(layout.tensors()[tensor].layer, bucket.layer) << layout.tensors()[tensor].name;
        }
      }
      EXPECT_EQ(end, 0);
    });
    EXPECT_TRUE(std::all_of(owners.begin(), owners.end(), [](int count) { return count == 1; }));
  }
}

TEST(Shards, CutAtTensorBordersAndEvenUpToOneTensor) {
  for (const char* name : {"tiny", "370m", "1.5b", "synthetic"}) {
    const ParameterLayout layout(preset(name));
    for (const int ranks : {2, 3, 8}) {
      const Index even = layout.size() / ranks;
      Index largest = 0;
      std::map<Index, std::size_t> tensors;  // by offset
      for (std::size_t tensor = 0; tensor < layout.tensors().size(); ++tensor) {
        const Index size = tensor_end(layout, tensor) - layout.offset(tensor);
        if (layout.tensors()[tensor].role != Role::Embedding) largest = std::max(largest, size);
        tensors[layout.offset(tensor)] = tensor;
      }
      on_groups(ranks, [&](comm::Group& group) {
        auto stream = cpu_stream(1);
        const Shards shards(layout, group, stream);
        EXPECT_LE(shards.held(), even + largest + 1) << name << " on " << ranks;
        for (const auto& bucket : shards.buckets()) {
          EXPECT_TRUE(tensors.contains(bucket.begin));
          for (const Index cut : {bucket.own_begin, bucket.own_end}) {
            if (cut == layout.size()) continue;
            const auto [begin, tensor] = *std::prev(tensors.upper_bound(cut));
            const auto& spec = layout.tensors()[tensor];
            EXPECT_EQ((cut - begin) % spec.cols, 0) << spec.name;
            EXPECT_TRUE(cut == begin || spec.role == Role::Embedding) << spec.name << " of " << name << " on " << ranks;
            EXPECT_EQ(cut % 64, 0);
          }
        }
      });
    }
  }
}

TEST_F(RanksTest, RanksThatCannotShareAStepAreRefused) {
  EXPECT_THROW(train(recipe(), 3, 1), std::exception);
}

}  // namespace
}  // namespace essh
