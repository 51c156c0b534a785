#include "essh/store/foreign_config.h"

#include <gtest/gtest.h>

#include "essh/base/error.h"
#include "essh/base/json.h"
#include "essh/model/config.h"

namespace essh {
namespace {

TEST(ForeignConfig, KeysOfHuggingFaceArePassedOver) {
  auto config = config_json(preset("tiny"));
  const auto own = config;
  config.update({{"transformers_version", "4.44.0"},
                 {"initializer_range", 0.02},
                 {"max_position_embeddings", 2048},
                 {"hidden_act", "silu"},
                 {"attention_bias", false},
                 {"rope_scaling", nullptr},
                 {"use_cache", true}});
  EXPECT_EQ(without_foreign_keys(config, "config.json"), own);
  EXPECT_NO_THROW(parse_config(without_foreign_keys(config, "config.json"), "config.json"));
}

TEST(ForeignConfig, AnotherComputationIsRefused) {
  for (const auto& [key, value] : std::vector<std::pair<std::string, Json>>{
           {"hidden_act", "gelu"}, {"attention_bias", true}, {"rope_scaling", {{"type", "linear"}, {"factor", 2}}}}) {
    auto config = config_json(preset("tiny"));
    config[key] = value;
    try {
      without_foreign_keys(config, "config.json");
      ADD_FAILURE() << key;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Unsupported);
      EXPECT_NE(std::string(error.what()).find(key), std::string::npos) << error.what();
    }
  }
}

TEST(ForeignConfig, UnknownKeysStayForTheReaderToRefuse) {
  auto config = config_json(preset("tiny"));
  config["hidden_sizes"] = 3;
  EXPECT_TRUE(without_foreign_keys(config, "x").contains("hidden_sizes"));
}

TEST(ForeignConfig, SpellingsOfTheDtype) {
  auto config = config_json(preset("tiny"));
  config["torch_dtype"] = "torch.bfloat16";
  EXPECT_EQ(without_foreign_keys(config, "x")["torch_dtype"], "bfloat16");
  config.erase("torch_dtype");
  config["dtype"] = "float16";
  EXPECT_EQ(without_foreign_keys(config, "x")["torch_dtype"], "float16");
}

}  // namespace
}  // namespace essh
