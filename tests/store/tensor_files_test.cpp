#include "essh/store/tensor_files.h"

#include "essh/base/json.h"
#include "tests/store/temp_folder.h"

namespace essh {
namespace {
namespace fs = std::filesystem;

// Ten tensors of 400 bytes, tensor i filled with i, and an empty one.
std::vector<TensorSpec> ten_tensors() {
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 10; ++i) specs.push_back({fmt::format("layer.{}.weight", i), DType::F32, {10, 10}});
  specs.push_back({"empty", DType::F64, {0}});
  return specs;
}

void write_ten(const fs::path& folder, std::uint64_t shard_bytes) {
  TensorFilesWriter writer(folder, ten_tensors(), {}, shard_bytes);
  for (const auto& tensor : writer.tensors()) {
    const auto digit = tensor.name == "empty" ? 0.0f : static_cast<float>(tensor.name[6] - '0');
    writer.write_as<float>(tensor, std::vector<float>(tensor.elements(), digit));
  }
  writer.commit();
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

void expect_ten(const fs::path& folder) {
  const auto files = TensorFiles::open(folder);
  EXPECT_EQ(files.tensors().size(), 11u);
  EXPECT_EQ(files.total_bytes(), 4000u);
  EXPECT_EQ(files.find("layer.10.weight"), nullptr);
  ASSERT_NE(files.find("empty"), nullptr);
  for (int i = 0; i < 10; ++i) {
    const auto* tensor = files.find(fmt::format("layer.{}.weight", i));
    ASSERT_NE(tensor, nullptr);
    std::vector<float> values(100);
    files.read_as<float>(*tensor, values);
    EXPECT_EQ(values, std::vector<float>(100, static_cast<float>(i)));
  }
}

struct TensorFilesTest : TempFolderTest {
  std::string refusal() {
    const auto message = message_of([&] { TensorFiles::open(folder); });
    const auto place = (folder / kTensorIndexName).string() + ": ";
    return message.starts_with(place) ? message.substr(place.size()) : message;
  }
  void write_index(const std::string& text) { write_durably(folder / kTensorIndexName, text); }
  std::string index() { return read_text(folder / kTensorIndexName, 100000); }
  void replace_in_index(const std::string& from, const std::string& to) {
    auto text = index();
    const auto at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from << " in " << text;
    write_index(text.replace(at, from.size(), to));
  }
};

TEST_F(TensorFilesTest, OneFileUpToTheLimit) {
  write_ten(folder, 4000);
  EXPECT_EQ(names_in(folder), std::vector<std::string>{"model.safetensors"});
  expect_ten(folder);
}

TEST_F(TensorFilesTest, SeveralAboveTheLimit) {
  write_ten(folder, 1300);  // three tensors a file, one in the last
  EXPECT_EQ(names_in(folder),
            (std::vector<std::string>{"model-00001-of-00004.safetensors", "model-00002-of-00004.safetensors",
                                      "model-00003-of-00004.safetensors", "model-00004-of-00004.safetensors",
                                      "model.safetensors.index.json"}));
  expect_ten(folder);
  const auto json = parse_json(index(), "index");
  EXPECT_EQ(json["metadata"]["total_size"], 4000);
  EXPECT_EQ(json["weight_map"].size(), 11u);
  EXPECT_EQ(json["weight_map"]["layer.3.weight"], "model-00002-of-00004.safetensors");
  EXPECT_EQ(SafetensorsFile::open(folder / "model-00004-of-00004.safetensors").metadata().at("format"), "pt");
}

TEST_F(TensorFilesTest, ATensorAboveTheLimitGetsAFileOfItsOwn) {
  write_ten(folder, 100);
  EXPECT_EQ(TensorFiles::open(folder).files().size(), 11u);
  expect_ten(folder);
}

TEST_F(TensorFilesTest, NoTensorsAreAlsoAFile) {
  TensorFilesWriter(folder, {}).commit();
  EXPECT_TRUE(TensorFiles::open(folder).tensors().empty());
}

TEST_F(TensorFilesTest, MisuseOfTheWriterIsCaught) {
  const auto specs = ten_tensors();
  EXPECT_THROW(TensorFilesWriter(folder, {specs[0], specs[1], specs[0]}, {}, 400), Error);
  TensorFilesWriter writer(folder, specs, {}, 400);
  EXPECT_THROW(writer.commit(), Error);
  const std::vector<float> values(100);
  EXPECT_THROW(writer.write_as<float>(writer.tensors()[1], values), Error);
}

TEST_F(TensorFilesTest, NothingThereOrBothThere) {
  EXPECT_EQ(refusal(),
            folder.string() +
                ": neither model.safetensors nor model.safetensors.index.json is there; this is no model folder");
  write_ten(folder, 4000);
  write_index("{}");
  EXPECT_NE(refusal().find("both model.safetensors and model.safetensors.index.json are there"), std::string::npos);
}

TEST_F(TensorFilesTest, MalformedIndex) {
  write_index("[]");
  EXPECT_EQ(refusal(), "expected an object with an object \"weight_map\"");
  write_index(R"({"weight_map":["a"]})");
  EXPECT_EQ(refusal(), "expected an object with an object \"weight_map\"");
  write_index(R"({"weight_map":{"a":1},"metadata":{"total_size":-1}})");
  EXPECT_EQ(
      refusal(),
      "2 problems\n  weight_map: the value of \"a\" must be a string\n  metadata: total_size must be a whole number");
  write_index(R"({"weight_map":{"a":"x","a":"y"}})");
  EXPECT_EQ(refusal(), "the key \"a\" occurs twice in one object");
}

// Fault M5: names that lead out of the folder.
TEST_F(TensorFilesTest, NamesOutsideTheFolderAreNeverOpened) {
  fs::create_directory(folder / "sub");
  write_ten(folder / "sub", 4000);
  for (const std::string name : {"../x.safetensors", "/etc/x.safetensors", "sub/model.safetensors", "..", "",
                                 "sub\\\\model.safetensors", ".hidden.safetensors", "passwd"}) {
    write_index(R"({"weight_map":{"layer.0.weight":")" + name + "\"}}");
    EXPECT_NE(refusal().find("only .safetensors files of this folder may be named"), std::string::npos) << name;
  }
}

TEST_F(TensorFilesTest, EveryProblemIsReportedAtOnce) {
  write_ten(folder, 2000);
  fs::remove(folder / "model-00002-of-00002.safetensors");
  fs::resize_file(folder / "model-00001-of-00002.safetensors", 100);
  replace_in_index("model-00001-of-00002.safetensors", "../evil.safetensors");
  const auto message = refusal();
  EXPECT_TRUE(message.starts_with("3 problems\n")) << message;
  EXPECT_NE(message.find("model-00002-of-00002.safetensors is missing, with 6 tensors"), std::string::npos) << message;
  EXPECT_NE(message.find("model-00001-of-00002.safetensors: a header of"), std::string::npos) << message;
  EXPECT_NE(message.find("names the file \"../evil.safetensors\""), std::string::npos) << message;
}

TEST_F(TensorFilesTest, SwappedShards) {
  write_ten(folder, 3600);  // nine in the first, one and the empty one in the second
  const auto one = folder / "model-00001-of-00002.safetensors", two = folder / "model-00002-of-00002.safetensors";
  fs::rename(one, folder / "x");
  fs::rename(two, one);
  fs::rename(folder / "x", two);
  const auto message = refusal();
  EXPECT_TRUE(message.starts_with("11 problems\n")) << message;
  EXPECT_NE(
      message.find("tensor \"layer.0.weight\" is not in model-00001-of-00002.safetensors, where the index puts it, "
                   "but in model-00002-of-00002.safetensors"),
      std::string::npos)
      << message;
}

TEST_F(TensorFilesTest, TensorsMissingExtraOrTwice) {
  write_ten(folder, 3600);
  const auto whole = index();
  replace_in_index("layer.4.weight", "layer.x.weight");
  EXPECT_EQ(refusal(),
            "2 problems\n"
            "  tensor \"layer.x.weight\" is not in model-00001-of-00002.safetensors, where the index puts it\n"
            "  tensor \"layer.4.weight\" of model-00001-of-00002.safetensors is not in the index");
  write_index(whole);
  replace_in_index("4000", "4001");
  EXPECT_EQ(refusal(), "metadata: total_size is 4001, the tensors have 4000 bytes");
  write_index(whole);
  fs::copy_file(folder / "model-00002-of-00002.safetensors", folder / "copy.safetensors");
  replace_in_index(R"("empty": "model-00002-of-00002.safetensors")", R"("empty": "copy.safetensors")");
  EXPECT_EQ(refusal(),
            "2 problems\n"
            "  tensor \"layer.9.weight\" is in model-00002-of-00002.safetensors and again in copy.safetensors\n"
            "  tensor \"empty\" is in copy.safetensors and again in model-00002-of-00002.safetensors");
}

}  // namespace
}  // namespace essh
