#include "essh/store/stored_model.h"

#include <cstring>

#include "essh/model/slice.h"
#include "tests/model/small_model.h"
#include "tests/store/temp_folder.h"

namespace essh {
namespace {

// Rows of more than one group, with a partial one; tiers that end within a group.
ModelConfig grouped_config() {
  auto config = small_config();
  config.hidden_size = 72;
  config.sliding_attention = {.num_attention_heads = 2, .head_dim = 36};
  config.intermediate_size = 45;
  config.channel_width = 14;
  config.elastic = two_rate(3, 45, {});
  return config;
}

struct StoredModelTest : TempFolderTest {
  ModelConfig config = grouped_config();
  Parameters<float> parameters{config};

  void SetUp() override {
    TempFolderTest::SetUp();
    fill_randomly(parameters, 5);
  }
  StoredModel exported(const char* name) {
    save_model(folder / name, config, parameters, full_capacity(config), {.format = parse_matrix_format(name)});
    return StoredModel::open(folder / name);
  }
};

std::vector<float> values_of(const Weight& weight) {
  std::vector<float> values(static_cast<std::size_t>(weight.rows * weight.cols));
  read_weight<float>(weight, values);
  return values;
}

// The elements of codes and scales, which may be misaligned.
std::vector<float> values_of(const CodedWeight& coded) {
  std::vector<float> values(static_cast<std::size_t>(coded.rows * coded.cols));
  std::vector<BFloat16> scales(static_cast<std::size_t>(scale_count(coded.cols)));
  for (Index r = 0; r < coded.rows; ++r) {
    std::memcpy(scales.data(), coded.scales + r * coded.scale_stride, scales.size() * sizeof(BFloat16));
    dequantise_row(
        coded.quantisation,
        {coded.codes + r * coded.code_stride, static_cast<std::size_t>(code_bytes(coded.quantisation, coded.cols))},
        scales,
        std::span(values).subspan(static_cast<std::size_t>(r * coded.cols), static_cast<std::size_t>(coded.cols)));
  }
  return values;
}

// The codes of a slice are those of its weights, in the family, in a copy of the slice, and from folder and memory.
TEST_F(StoredModelTest, CodesOfEverySliceAreItsWeights) {
  const StoredModel memory(LoadedModel{config, parameters}, "a");
  for (const char* name : {"q8", "fp8", "q4"}) {
    const auto from_folder = exported(name), from_memory = memory.stored_as(parse_matrix_format(name));
    EXPECT_EQ(from_memory.config().quantization.format, name);
    EXPECT_EQ(from_memory.hash(), "a");
    for (const Capacity capacity : {full_capacity(config), Capacity{2, 33}, {1, 7}, {3, 1}}) {
      const auto cut = from_folder.cut(capacity);
      for (const auto& [model, at] : {std::pair{&from_folder, capacity}, {&from_memory, capacity}, {&cut, capacity}}) {
        const auto weights = slice(model->config(), model->weights(), at);
        const auto codes = model->coded(at);
        const auto tensors = tensor_list(slice(config, capacity));
        ASSERT_EQ(codes.size(), tensors.size());
        for (std::size_t i = 0; i < tensors.size(); ++i) {
          SCOPED_TRACE(::testing::Message() << name << ", " << tensors[i].name << ", " << at.channels << "x" << at.ffn);
          ASSERT_EQ(codes[i].codes != nullptr, tensors[i].is_matrix());
          EXPECT_EQ(values_of(weights[i]), values_of(slice(config, from_folder.weights(), capacity)[i]));
          if (!tensors[i].is_matrix()) continue;
          EXPECT_EQ(codes[i].quantisation, tensor_quantisation(tensors[i], *parse_matrix_format(name).quantisation));
          EXPECT_EQ(values_of(codes[i]), values_of(weights[i]));
        }
      }
    }
  }
}

TEST_F(StoredModelTest, StoredAsBf16IsRounded) {
  const StoredModel memory(LoadedModel{config, parameters}, "a");
  const auto rounded = memory.stored_as(parse_matrix_format("bf16"));
  const auto tensors = tensor_list(config);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(rounded.weights()[i].format, tensors[i].is_matrix() ? Format::BF16 : Format::F32);
    EXPECT_EQ(rounded.coded(full_capacity(config))[i].codes, nullptr);
    auto wanted = values_of(memory.weights()[i]);
    if (tensors[i].is_matrix()) {
      for (auto& x : wanted) x = static_cast<float>(BFloat16(x));
    }
    EXPECT_EQ(values_of(rounded.weights()[i]), wanted) << tensors[i].name;
  }
}

// -128 is a code that no export writes: the matrix is used as floats, with that value.
TEST_F(StoredModelTest, CodesThatNoExportWritesAreNotKept) {
  exported("q8");
  const auto path = folder / "q8" / "model.safetensors";
  auto bytes = read_text(path, 1 << 24);
  const auto matrix = ParameterLayout(config).find(-1, "model.embed_tokens.weight");
  const auto before = StoredModel::open(folder / "q8");
  const auto* codes = before.coded(full_capacity(config))[matrix].codes;
  const auto at = bytes.find(std::string(reinterpret_cast<const char*>(codes), 72));
  ASSERT_NE(at, std::string::npos);
  bytes[at] = static_cast<char>(0x80);
  write_durably(path, bytes);
  const auto after = StoredModel::open(folder / "q8");
  const auto list = after.coded(full_capacity(config));
  EXPECT_EQ(list[matrix].codes, nullptr);
  EXPECT_LT(values_of(after.weights()[matrix])[0], 0);
  EXPECT_EQ(std::ranges::count_if(list, [](const CodedWeight& w) { return w.codes != nullptr; }) + 1,
            std::ranges::count_if(tensor_list(config), [](const ModelTensor& t) { return t.is_matrix(); }));
}

}  // namespace
}  // namespace essh
