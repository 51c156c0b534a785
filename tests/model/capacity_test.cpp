#include "essh/model/capacity.h"

#include <gtest/gtest.h>

#include <cmath>

#include "essh/base/json.h"
#include "essh/model/config.h"
#include "essh/model/cost.h"
#include "essh/model/tensors.h"

namespace essh {
namespace {

struct Expected {
  const char* preset;
  const char* tier;
  Index channels, ffn, parameters, state, kv;
};

class PaperNumbers : public ::testing::TestWithParam<Expected> {};

TEST_P(PaperNumbers, AreExact) {
  const auto& want = GetParam();
  const auto config = preset(want.preset);
  const auto tier = find_tier(config, want.tier);
  const auto cost = cost_of(config, tier.capacity);
  EXPECT_EQ(tier.capacity.channels, want.channels);
  EXPECT_EQ(tier.capacity.ffn, want.ffn);
  EXPECT_EQ(cost.parameters, want.parameters);
  EXPECT_EQ(cost.state_bytes, want.state);
  EXPECT_EQ(cost.kv_bytes, want.kv);
}

INSTANTIATE_TEST_SUITE_P(Specification, PaperNumbers,
                         ::testing::Values(Expected{"370m", "T1", 8, 448, 92144664, 272384, 22020096},
                                           Expected{"370m", "T4", 18, 1792, 185254998, 612864, 22020096},
                                           Expected{"370m", "T7", 25, 3136, 274275867, 851200, 22020096},
                                           Expected{"370m", "T10", 32, 4608, 370866144, 1089536, 22020096},
                                           Expected{"1.5b", "T1", 8, 576, 474479304, 819200, 50331648},
                                           Expected{"1.5b", "T4", 18, 2176, 827570754, 1843200, 50331648},
                                           Expected{"1.5b", "T7", 25, 3840, 1168320177, 2560000, 50331648},
                                           Expected{"1.5b", "T10", 32, 5632, 1531089696, 3276800, 50331648}));

TEST(Capacity, TheTenTiersOfBothScales) {
  const std::vector<Index> channels = {8, 11, 15, 18, 20, 23, 25, 28, 30, 32};
  const std::vector<Index> large = {576, 1024, 1664, 2176, 2688, 3392, 3840, 4416, 5056, 5632};
  const std::vector<Index> small = {448, 832, 1344, 1792, 2240, 2752, 3136, 3648, 4096, 4608};
  for (const auto& [name, ffn] : {std::pair{"1.5b", large}, std::pair{"370m", small}}) {
    const auto tiers = tiers_of(preset(name));
    ASSERT_EQ(tiers.size(), 10u);
    for (std::size_t i = 0; i < 10; ++i) EXPECT_EQ(tiers[i].capacity, (Capacity{channels[i], ffn[i]})) << tiers[i].name;
  }
}

TEST(Capacity, SmallPresetsHaveThePapersSizes) {
  const auto dna = preset("dna");
  EXPECT_EQ(cost_of(dna, full_capacity(dna)).parameters, 533952);
  EXPECT_EQ(cost_of(dna, find_tier(dna, "T1").capacity).parameters, 134496);
  EXPECT_EQ(cost_of(dna, find_tier(dna, "T4").capacity).parameters, 239496);
  EXPECT_EQ(cost_of(dna, find_tier(dna, "T7").capacity).parameters, 362148);
  auto palindrome = preset("synthetic");
  palindrome.vocab_size = 67;
  EXPECT_EQ(cost_of(palindrome, full_capacity(palindrome)).parameters, 764960);
}

TEST(Capacity, BaselinesHaveTheirExactSizes) {
  for (const auto& [name, parameters, kv] :
       {std::tuple{"transformer-370m", 365550976, 161559552}, {"transformer-1.5b", 1536280576, 469991424}}) {
    const auto config = preset(name);
    const auto cost = cost_of(config, full_capacity(config));
    EXPECT_EQ(cost.parameters, parameters) << name;
    EXPECT_EQ(cost.kv_bytes, kv) << name;
    EXPECT_EQ(cost.state_bytes, 0) << name;
    EXPECT_EQ(tiers_of(config).size(), 1u);
  }
  const auto matformer = preset("matformer-370m");
  const std::vector<Index> units = {256, 512, 896, 1280, 1664, 2240, 2624, 3136, 3648, 4224};
  const auto tiers = tiers_of(matformer);
  ASSERT_EQ(tiers.size(), units.size());
  for (std::size_t i = 0; i < units.size(); ++i) EXPECT_EQ(tiers[i].capacity, (Capacity{0, units[i]})) << i;
  EXPECT_EQ(cost_of(matformer, tiers[0].capacity).parameters, 130899328);
  EXPECT_EQ(cost_of(matformer, tiers[9].capacity).parameters, 365550976);
  EXPECT_EQ(find_tier(matformer, "xi=0.5").capacity, (Capacity{0, 2112}));
  EXPECT_EQ(find_tier(matformer, "100").capacity, (Capacity{0, 100}));
  EXPECT_EQ(find_tier(matformer, "100").name, "100");
  EXPECT_THROW(find_tier(matformer, "18x100"), Error);
}

TEST(Capacity, NamesAreFoundOrExplained) {
  const auto config = preset("370m");
  EXPECT_EQ(find_tier(config, "18x1792").capacity, (Capacity{18, 1792}));
  EXPECT_EQ(find_tier(config, "xi=0.3125").capacity, (Capacity{18, 1792}));
  EXPECT_EQ(find_tier(config, "full").capacity, (Capacity{32, 4608}));
  EXPECT_THROW(find_tier(config, "T11"), Error);
  EXPECT_THROW(find_tier(config, "33x1792"), Error);
  EXPECT_THROW(find_tier(config, "xi=0"), Error);
  EXPECT_THROW(find_tier(config, "xi=nan"), Error);
  EXPECT_THROW(preset("370n"), Error);
}

TEST(Config, SlopesBelongToAFamilyAndCostNothingAtATier) {
  const auto plain = preset("370m");
  auto config = plain;
  config.elastic.slopes = true;
  const auto again = parse_config(config_json(config), "c");
  EXPECT_TRUE(again.elastic.slopes);
  EXPECT_FALSE(config_json(plain)["elastic"].contains("slopes"));
  EXPECT_EQ(tensor_list(config).size(), 2 * tensor_list(plain).size());
  for (const auto& tier : tiers_of(config))
    EXPECT_EQ(cost_of(config, tier.capacity).parameters, cost_of(plain, tier.capacity).parameters) << tier.name;
  EXPECT_EQ(slope_share(config, full_capacity(config)), 0);
  EXPECT_DOUBLE_EQ(slope_share(config, {.channels = 1, .ffn = 4608 / 4}), 0.75 * 0.75);
  config.elastic.channels = config.elastic.ffn = {};
  try {
    check_config(config, "c");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("elastic.slopes"), std::string::npos) << error.what();
  }
}

// Fault M6: contradictions in a config.
TEST(Config, RoundTripsAndNamesContradictions) {
  const auto config = preset("1.5b");
  EXPECT_EQ(to_text(config_json(parse_config(config_json(config), "c"))), to_text(config_json(config)));
  const auto problem = [&](const char* key, const Json& value) {
    auto object = config_json(config);
    object[key] = value;
    try {
      parse_config(object, "config.json");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(problem("model_type", "llama"), "config.json: model_type is \"llama\", this program runs \"essh\" models");
  EXPECT_EQ(problem("attention_layers", {15, 2}),
            "config.json: attention_layers must rise and lie below num_hidden_layers");
  EXPECT_EQ(problem("attention_layers", {3}),
            "config.json: attention_layers and layer_types must name the same layers of sliding attention");
  EXPECT_EQ(problem("num_attention_heads", 31),
            "config.json: num_attention_heads * head_dim of sliding attention must equal hidden_size");
  EXPECT_EQ(
      problem("spectral_channels", 31),
      "config.json: elastic.channels and elastic.ffn must equal spectral_channels and intermediate_size of the family");
  EXPECT_EQ(problem("vocab_size", 5), "config.json: bos_token_id and eos_token_id must lie below vocab_size");
  EXPECT_EQ(problem("hidden_sizes", 5), "config.json: unknown key \"hidden_sizes\", did you mean \"hidden_size\"?");
  EXPECT_EQ(problem("transformers_version", "4.0"), "accepted");
  EXPECT_EQ(problem("layer_types", {"spectral"}),
            "config.json: layer_types must name one mixer for each of num_hidden_layers");
}

TEST(Cost, TheBudgetForAParameterCountIsTheNearestThereIs) {
  for (const char* name : {"370m", "tiny", "matformer-370m"}) {
    const auto config = preset(name);
    const auto count = [&](double budget) {
      return static_cast<double>(cost_of(config, capacity_at(config, budget)).parameters);
    };
    const double full = count(1);
    std::vector<double> counts;
    for (int i = 1; i <= 1000; ++i) counts.push_back(count(i / 1000.0));
    for (const double share : {0.2, 0.31, 0.437, 0.5, 0.648, 0.75, 0.9, 0.999, 1.0, 7.0}) {
      double nearest = INFINITY;
      for (const double found : counts) nearest = std::min(nearest, std::abs(found - share * full));
      const double budget = budget_for_parameters(config, share * full);
      EXPECT_LE(std::abs(count(budget) - share * full), nearest) << name << " " << share;
      EXPECT_EQ(count(budget * (1 + 1e-9) > 1 ? 1 : budget * (1 + 1e-9)), count(budget)) << "inside its interval";
    }
  }
}

TEST(Config, OnlyAFloat32ResidualIsWritten) {
  auto config = preset("tiny");
  EXPECT_FALSE(config_json(config).contains("residual_in_fp32")) << "older builds read the folder";
  config.residual_in_fp32 = true;
  EXPECT_EQ(config_json(config)["residual_in_fp32"], true);
  EXPECT_TRUE(parse_config(config_json(config), "c").residual_in_fp32);
}

TEST(Config, FoldersBeforeLayerTypesLoad) {
  auto object = config_json(preset("370m"));
  ASSERT_EQ(object["layer_types"].size(), 22u);
  EXPECT_EQ(object["layer_types"][12], "sliding_attention");
  EXPECT_EQ(object["layer_types"][0], "spectral");
  EXPECT_EQ(object["elastic"]["channels"], 32) << "the two-rate map keeps its form";
  object.erase("layer_types");
  const auto old = parse_config(object, "c");
  EXPECT_EQ(to_text(config_json(old)), to_text(config_json(preset("370m"))));
  object.erase("attention_layers");
  EXPECT_THROW(parse_config(object, "c"), Error);
}

TEST(Config, AxesAndKindsOfOtherModelsRoundTrip) {
  for (const char* name : {"transformer-370m", "matformer-370m"}) {
    const auto object = config_json(preset(name));
    EXPECT_EQ(to_text(config_json(parse_config(object, "c"))), to_text(object));
    EXPECT_FALSE(object.contains("spectral_channels"));
    EXPECT_EQ(object["full_attention"]["num_attention_heads"], 14);
  }
  const auto object = config_json(preset("matformer-370m"));
  EXPECT_EQ(object["elastic"]["ffn"]["full"], 4224);
  EXPECT_EQ(object["elastic"]["ffn"]["rounding"], "down");
}

}  // namespace
}  // namespace essh
