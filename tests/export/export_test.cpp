#include "essh/export/export.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "essh/export/verify.h"
#include "essh/model/slice.h"
#include "essh/store/manifest.h"
#include "essh/text/tokenizer.h"
#include "tests/model/small_model.h"
#include "tests/sanitized.h"

namespace essh {
namespace {
namespace fs = std::filesystem;

struct ExportTest : ::testing::Test {
  fs::path folder;
  Stream stream = cpu_stream(2);
  ModelConfig config = small_config();

  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "essh-export-XXXXXX").string();
    folder = ::mkdtemp(pattern.data());
    config.vocab_size = 16;
    config.intermediate_size = 320;
    config.spectral_channels = 9;
    config.elastic = two_rate(9, 320, deployment_budgets());
    Parameters<float> parameters(config);
    fill_randomly(parameters, 12, 0.2);
    write_durably(folder / "tokenizer.json", make_nucleotide_tokenizer()->to_json());
    save_model(folder / "family", config, parameters, full_capacity(config), {.copied = {folder / "tokenizer.json"}});
  }
  void TearDown() override { fs::remove_all(folder); }

  void export_all(const ExportOptions& options) {
    const auto parent = load_model(folder / "family");
    for (const auto& tier : tiers_of(config))
      export_tier(parent, folder / "family", model_hash(folder / "family"), tier, folder / tier.name, options);
  }
  Verification verify(const fs::path& name, const VerifyInput& input = {.length = kSanitized ? 40 : 160}) {
    return verify_model(folder / name, folder / "family", stream, Precision::Auto, input);
  }
  static std::string faults(const Verification& result) {
    std::string text;
    for (const auto& check : result.checks) {
      if (!check.good) text += check.name + ": " + check.detail + "\n";
    }
    return text;
  }
};

TEST_F(ExportTest, EveryTierEqualsTheParentBitwiseInEveryDtype) {
  for (const auto dtype : {DType::F32, DType::BF16, DType::F16}) {
    export_all({.format = {dtype},
                .existing = ExistingFolder::Replace,
                .shard_bytes = dtype == DType::BF16 ? std::uint64_t{4096} : 5'000'000'000});
    for (const auto& tier : tiers_of(config)) {
      const auto result = verify(tier.name);
      EXPECT_TRUE(result.good()) << tier.name << "\n" << faults(result);
      EXPECT_TRUE(fs::exists(folder / tier.name / "tokenizer.json"));
      EXPECT_EQ(full_capacity(read_config(folder / tier.name)), tier.capacity);
    }
  }
}

// Exports of a family with slopes contain the sums and no slopes, T10 included; the family keeps them.
TEST_F(ExportTest, TiersOfAFamilyWithSlopesAreSums) {
  config.elastic.slopes = true;
  Parameters<float> parameters(config);
  fill_randomly(parameters, 13, 0.2);
  fs::remove_all(folder / "family");
  save_model(folder / "family", config, parameters, full_capacity(config), {.copied = {folder / "tokenizer.json"}});
  const auto kept = load_model(folder / "family");
  EXPECT_TRUE(kept.config.elastic.slopes);
  EXPECT_TRUE(std::ranges::equal(kept.parameters.tensor(0), parameters.tensor(0)));
  for (const char* format : {"bf16", "f16", "q8", "f32"}) {
    export_all({.format = parse_matrix_format(format), .existing = ExistingFolder::Replace});
    for (const auto& tier : tiers_of(config)) {
      if (tier.name != "T4" && tier.name != "T10" && format != std::string_view("f32")) continue;
      const auto result = verify(tier.name);
      EXPECT_TRUE(result.good()) << tier.name << " " << format << "\n" << faults(result);
      const auto exported = read_config(folder / tier.name);
      EXPECT_FALSE(exported.elastic.slopes) << tier.name;
      EXPECT_FALSE(exported.elastic.is_family()) << tier.name;
    }
  }
  const auto& layout = parameters.layout();
  for (const auto& tier : tiers_of(config)) {
    const auto exported = load_model(folder / tier.name);
    const auto share = static_cast<float>(std::pow(1 - static_cast<double>(tier.capacity.ffn) / 320, 2));
    for (const char* name : {"mlp.gate_proj.weight", "mixer.decay", "input_layernorm.weight"}) {
      const auto found = exported.parameters.tensor(exported.parameters.layout().find(0, name));
      const auto whole = parameters.tensor(layout.find(0, name)),
                 slope = parameters.tensor(layout.find(0, std::string(name) + ".slope"));
      ASSERT_LE(found.size(), whole.size());
      for (std::size_t i = 0; i < found.size(); ++i) {
        const float sum = tier.name == "T10" ? whole[i] : std::fma(share, slope[i], whole[i]);
        ASSERT_EQ(found[i], sum) << tier.name << " " << name << " " << i;
      }
    }
  }
  // A changed slope is another tier.
  auto changed = load_model(folder / "family");
  changed.parameters.tensor(layout.find(0, "mlp.gate_proj.weight.slope"))[3] += 0.5f;
  fs::remove_all(folder / "family");
  save_model(folder / "family", config, changed.parameters, full_capacity(config),
             {.copied = {folder / "tokenizer.json"}});
  EXPECT_FALSE(verify("T4").good());
  EXPECT_TRUE(verify("T10").good());
}

TEST_F(ExportTest, AnExportKeepsTheResidualsType) {
  export_all({});
  EXPECT_FALSE(read_config(folder / "T4").residual_in_fp32);
  EXPECT_EQ(read_text(folder / "T4" / "config.json", 1u << 20).find("residual_in_fp32"), std::string::npos);
  auto parent = load_model(folder / "family");
  parent.config.residual_in_fp32 = true;
  fs::remove_all(folder / "family");
  save_model(folder / "family", parent.config, parent.parameters, full_capacity(config),
             {.copied = {folder / "tokenizer.json"}});
  for (const char* format : {"f32", "q8"}) {
    export_all({.format = parse_matrix_format(format), .existing = ExistingFolder::Replace});
    for (const auto& tier : tiers_of(config)) {
      EXPECT_TRUE(read_config(folder / tier.name).residual_in_fp32);
      const auto result = verify(tier.name);
      EXPECT_TRUE(result.good()) << tier.name << "\n" << faults(result);
    }
  }
}

// The codes are those of the slice, not of the parent's longer rows; the engine computes with the dequantised values.
TEST_F(ExportTest, QuantisedExportsAreTheQuantisedSlice) {
  for (const char* format : {"q8", "q4", "fp8"}) {
    export_all({.format = parse_matrix_format(format), .existing = ExistingFolder::Replace});
    for (const auto& tier : tiers_of(config)) {
      const auto result = verify(tier.name);
      EXPECT_TRUE(result.good()) << tier.name << " in " << format << "\n" << faults(result);
      const auto found = read_config(folder / tier.name);
      EXPECT_EQ(found.quantization.format, format);
      EXPECT_EQ(matrix_format_name(matrix_format(found)), format);
    }
  }
  // Other weights of the same sizes are detected.
  auto parent = load_model(folder / "family");
  for (std::size_t i = 0; i < parent.parameters.layout().tensors().size(); ++i) {
    if (parent.parameters.layout().tensors()[i].name.ends_with("down_proj.weight")) parent.parameters.tensor(i)[0] += 1;
  }
  export_tier(parent, folder / "family", "x", tiers_of(config)[3], folder / "other",
              {.format = parse_matrix_format("q8")});
  EXPECT_NE(faults(verify("other")).find("row 0 is not the parent's"), std::string::npos);
  EXPECT_THROW(parse_matrix_format("q5"), Error);
}

TEST_F(ExportTest, ASliceInMemoryIsTheExport) {
  const auto parent = load_model(folder / "family");
  auto tiers = tiers_of(config);
  tiers.push_back(custom_tier(config, {5, 37}));
  for (const auto& tier : tiers) {
    export_tier(parent, folder / "family", model_hash(folder / "family"), tier, folder / tier.name, {});
    const auto sliced = slice(parent.config, parent.parameters, tier.capacity);
    const auto exported = load_model(folder / tier.name);
    EXPECT_EQ(full_capacity(slice(parent.config, tier.capacity)), full_capacity(exported.config)) << tier.name;
    const auto& tensors = exported.parameters.layout().tensors();
    ASSERT_EQ(sliced.layout().tensors().size(), tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i)
      EXPECT_TRUE(std::ranges::equal(sliced.tensor(i), exported.parameters.tensor(i)))
          << tier.name << ", " << tensors[i].name;
  }
}

TEST_F(ExportTest, VerifyFindsWhatIsWrong) {
  export_all({});
  const auto damage = [&](const fs::path& file, std::streamoff at) {
    std::fstream stream_to(file, std::ios::in | std::ios::out | std::ios::binary);
    stream_to.seekp(at, std::ios::end);
    stream_to.write("\xff\xff\x7f\x7f", 4);
  };
  damage(folder / "T4" / "model.safetensors", -400);
  const auto changed = verify("T4");
  EXPECT_NE(faults(changed).find("hashes"), std::string::npos);
  EXPECT_NE(faults(changed).find("parent: "), std::string::npos) << faults(changed);

  auto parent = load_model(folder / "family");
  parent.parameters.tensor(3)[1] = NAN;
  export_tier(parent, folder / "family", "x", tiers_of(config)[1], folder / "nan", {});
  EXPECT_NE(faults(verify_model(folder / "nan", std::nullopt, stream)).find("not finite"), std::string::npos);
  EXPECT_THROW(load_model(folder / "nan"), Error);
  EXPECT_NO_THROW(load_model(folder / "nan", NonFinite::Accept));

  fs::copy_file(folder / "T2" / "config.json", folder / "T3" / "config.json", fs::copy_options::overwrite_existing);
  EXPECT_NE(faults(verify_model(folder / "T3", std::nullopt, stream)).find("config.json asks for"), std::string::npos);
  fs::remove(folder / "T5" / "model.safetensors");
  EXPECT_FALSE(verify_model(folder / "T5", std::nullopt, stream).good());
}

// Two batches of four sequences, all logits, and 1 + 4 rows step by step.
TEST_F(ExportTest, VerifyComparesTwoBatchesOfFourSequences) {
  export_all({});
  const auto detail = [&](const VerifyInput& input) {
    const auto result = verify("T4", input);
    for (const auto& check : result.checks) {
      if (check.name == "parent") return check.detail;
    }
    return faults(result);
  };
  const auto logits = [&](Index length, Index rows) {
    return fmt::format("{} logits equal bit by bit", 2 * (4 * length + rows) * config.vocab_size);
  };
  EXPECT_TRUE(detail({}).starts_with(logits(2048, 5))) << detail({});
  EXPECT_NE(detail({}).find("2 x 4 x 2048 of random tokens"), std::string::npos) << detail({});
  EXPECT_TRUE(detail({.length = 3}).starts_with(logits(3, 3))) << detail({.length = 3});
  VerifyInput text{.length = 30, .tokens = {}, .name = "held-out text"};
  for (Index i = 0; i < text.needed(); ++i) text.tokens.push_back(static_cast<std::int32_t>(i % config.vocab_size));
  EXPECT_NE(detail(text).find("2 x 4 x 30 of held-out text"), std::string::npos) << detail(text);
  text.tokens.back() = static_cast<std::int32_t>(config.vocab_size);
  EXPECT_NE(faults(verify("T4", text)).find("held-out text: token 239 is 16"), std::string::npos);

  // A weight used only by late tokens of the last sequence: the embedding of a token that occurs nowhere else.
  auto changed = load_model(folder / "T4");
  changed.parameters.tensor(
      changed.parameters.layout().find(-1, "model.embed_tokens.weight"))[15 * config.hidden_size] += 1;
  save_model(folder / "other", changed.config, changed.parameters, full_capacity(changed.config),
             {.copied = {folder / "tokenizer.json"}});
  for (auto& token : text.tokens) token = 1 + token % 14;
  text.tokens.back() = 15;
  EXPECT_NE(faults(verify("other", text)).find("logits differ from the parent"), std::string::npos);
}

TEST_F(ExportTest, VerifyWantsEveryFileListed) {
  export_all({});
  const auto model = folder / "T4";
  const auto found = [&] { return faults(verify_model(model, std::nullopt, stream)); };
  EXPECT_EQ(found(), "");
  std::ofstream(model / ".gitattributes") << "of another tool";
  EXPECT_EQ(found(), "");
  std::ofstream(model / "extra.bin") << "?";
  EXPECT_NE(found().find("\"extra.bin\" is not listed"), std::string::npos);
  fs::remove(model / "extra.bin");
  // Changed weights, with a manifest of the old ones.
  const auto sums = read_text(model / "SHA256SUMS", 10000);
  std::string fewer;
  std::istringstream lines(sums);
  for (std::string line; std::getline(lines, line);) {
    if (!line.ends_with("model.safetensors")) fewer += line + "\n";
  }
  write_durably(model / "SHA256SUMS", fewer);
  EXPECT_NE(found().find("\"model.safetensors\" is not listed"), std::string::npos);
}

TEST_F(ExportTest, VerifyReadsTheTokenizer) {
  export_all({});
  const auto model = folder / "T4";
  const auto found = [&](bool with_parent) {
    fs::remove(model / "SHA256SUMS");
    write_manifest(model);  // so that the hashes match
    return faults(verify_model(model, with_parent ? std::optional(folder / "family") : std::nullopt, stream,
                               Precision::Auto, {.length = 8}));
  };
  EXPECT_EQ(found(true), "");
  write_durably(model / "tokenizer.json", "{\"model\": {}}");
  EXPECT_NE(found(false).find("tokenizer: "), std::string::npos);
  write_durably(model / "tokenizer.json", make_byte_tokenizer()->to_json());
  EXPECT_NE(found(false).find("257 entries"), std::string::npos);
  write_durably(model / "tokenizer.json", make_nucleotide_tokenizer()->to_json() + " ");
  EXPECT_NE(found(true).find("not the tokenizer of"), std::string::npos);
  fs::remove(model / "tokenizer.json");
  EXPECT_NE(found(false).find("tokenizer.json: is missing"), std::string::npos) << "essh.json names it";
  write_durably(model / "essh.json", "{}");
  EXPECT_EQ(found(false), "");
  EXPECT_NE(found(true).find("tokenizer.json: is missing"), std::string::npos) << "the parent has one";
}

TEST_F(ExportTest, TheSourceIsNeverATarget) {
  const auto parent = load_model(folder / "family");
  const auto hash = model_hash(folder / "family");
  for (const auto& target : {folder / "family", folder / "family" / "T1", folder}) {
    EXPECT_THROW(export_tier(parent, folder / "family", hash, tiers_of(config)[0], target,
                             {.existing = ExistingFolder::Replace}),
                 Error);
    EXPECT_EQ(model_hash(folder / "family"), hash);
  }
}

TEST_F(ExportTest, AnExistingFolderIsKeptUnlessAskedOtherwise) {
  export_all({});
  EXPECT_THROW(export_all({}), Error);
  EXPECT_NO_THROW(export_all({.existing = ExistingFolder::Replace}));
}

}  // namespace
}  // namespace essh
