#include "essh/store/model_folder.h"

#include <cmath>

#include "essh/base/json.h"
#include "essh/store/stored_model.h"
#include "tests/model/small_model.h"
#include "tests/store/temp_folder.h"

namespace essh {
namespace {
namespace fs = std::filesystem;

struct ModelFolderTest : TempFolderTest {
  ModelConfig config = small_config();
  fs::path model;

  void SetUp() override {
    TempFolderTest::SetUp();
    model = folder / "model";
    Parameters<float> parameters(config);
    fill_randomly(parameters, 5);
    save_model(model, config, parameters, full_capacity(config), {});
  }
};

// Fault M6: tensors that do not fit the config.
TEST_F(ModelFolderTest, EveryTensorThatDoesNotFitTheConfigIsListed) {
  EXPECT_NO_THROW(load_model(model));
  auto object = read_json(model / "config.json");
  object["num_hidden_layers"] = 4;
  object["layer_types"].push_back("spectral");
  object["vocab_size"] = 13;
  write_durably(model / "config.json", to_text(object));
  for (const auto& message : {message_of([&] { load_model(model); }), message_of([&] { StoredModel::open(model); })}) {
    EXPECT_NE(message.find("model.layers.3.mlp.down_proj.weight is missing"), std::string::npos) << message;
    EXPECT_NE(message.find("has shape [11, 8], config.json asks for [13, 8]"), std::string::npos) << message;
  }
  object["num_hidden_layers"] = 2;
  object["layer_types"] = {"spectral", "sliding_attention"};
  object["vocab_size"] = 11;
  write_durably(model / "config.json", to_text(object));
  EXPECT_NE(message_of([&] { load_model(model); }).find("is not part of this model"), std::string::npos);
}

// Fault M7: weights that are not finite.
TEST_F(ModelFolderTest, ValuesThatAreNotFiniteAreCountedAndRefused) {
  auto loaded = load_model(model);
  loaded.parameters.tensor(0)[3] = NAN;
  loaded.parameters.tensor(0)[5] = INFINITY;
  save_model(folder / "nan", config, loaded.parameters, full_capacity(config), {});
  for (const auto& message :
       {message_of([&] { load_model(folder / "nan"); }), message_of([&] { StoredModel::open(folder / "nan"); })})
    EXPECT_NE(message.find("has 2 values that are not finite"), std::string::npos) << message;
  EXPECT_NO_THROW(load_model(folder / "nan", NonFinite::Accept));
  EXPECT_NO_THROW(StoredModel::open(folder / "nan", NonFinite::Accept));
}

TEST_F(ModelFolderTest, TheFolderNamesWhatWasPutBesideTheWeights) {
  write_durably(folder / "tokenizer.json", "{}");
  Parameters<float> parameters(config);
  save_model(folder / "with", config, parameters, full_capacity(config),
             {.provenance = R"({"kind": "test"})", .copied = {folder / "tokenizer.json"}});
  EXPECT_EQ(read_json(folder / "with" / "essh.json"), Json({{"kind", "test"}, {"companions", {"tokenizer.json"}}}));
}

}  // namespace
}  // namespace essh
