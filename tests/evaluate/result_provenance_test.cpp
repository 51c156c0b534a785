#include "essh/evaluate/result_provenance.h"

#include <gtest/gtest.h>

#include "essh/config/fields.h"
#include "essh/evaluate/perplexity.h"
#include "essh/evaluate/recall.h"
#include "essh/export/export.h"
#include "essh/model/cost.h"
#include "tests/evaluate/small_engine.h"
#include "tests/store/temp_folder.h"

namespace essh {
namespace {

struct ResultProvenanceTest : TempFolderTest {};

TEST_F(ResultProvenanceTest, NamesModelStageDataSeedAndBuild) {
  const auto config = small_config();
  Parameters<float> parameters(config);
  fill_randomly(parameters, 5);
  save_model(folder / "family", config, parameters, full_capacity(config), {.provenance = R"({"kind": "pretrained"})"});
  const auto model = StoredModel::open(folder / "family");
  const auto known = provenance_of(model, folder / "family", "of some text", 9);
  EXPECT_EQ(known.model_hash, model_hash(folder / "family"));
  EXPECT_EQ(known.stage, "pretrained");
  const auto json = write_fields(known);
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  EXPECT_EQ(keys, (std::vector<std::string>{"model_hash", "stage", "data_fingerprint", "seed", "build"}));
  EXPECT_EQ(json["seed"], 9);
  ResultProvenance again;
  read_fields(again, json, "test");
  EXPECT_EQ(write_fields(again), json);
  EXPECT_TRUE(known.build.starts_with("essh ")) << known.build;
  EXPECT_EQ(provenance_of(small_family(), {}, "", 0).stage, "");

  EXPECT_EQ(to_json(PerplexityReport{}, "m", known)["provenance"], json);
  EXPECT_EQ(to_json(RecallReport{}, "m", known)["provenance"], json);
}

TEST_F(ResultProvenanceTest, AnExportBelongsToTheFamilyItWasCutFrom) {
  auto config = small_config();
  config.elastic.tiers = {0.2, 1.0};
  Parameters<float> parameters(config);
  fill_randomly(parameters, 5);
  save_model(folder / "family", config, parameters, full_capacity(config), {});
  const auto parent = load_model(folder / "family");
  const auto hash = model_hash(folder / "family");
  const auto full = cost_of(config, full_capacity(config)).parameters;
  for (const auto& tier : tiers_of(config)) {
    export_tier(parent, folder / "family", hash, tier, folder / tier.name, {});
    const auto family = family_of(StoredModel::open(folder / tier.name), folder / tier.name);
    EXPECT_EQ(family.hash, hash);
    EXPECT_EQ(family.full_parameters, full);
  }
  const auto itself = family_of(StoredModel::open(folder / "family"), folder / "family");
  EXPECT_EQ(itself.hash, hash);
  EXPECT_EQ(itself.full_parameters, full);
}

}  // namespace
}  // namespace essh
