#include "essh/store/safetensors.h"

#include <numeric>

#include "tests/store/temp_folder.h"

namespace essh {
namespace {
namespace fs = std::filesystem;

std::string length_bytes(std::uint64_t length) {
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(length >> (8 * i) & 0xff);
  return bytes;
}

std::string image(const std::string& header, std::size_t data_bytes) {
  return length_bytes(header.size()) + header + std::string(data_bytes, 'x');
}

SafetensorsFile open_image(const std::string& bytes) {
  return SafetensorsFile::from_memory(std::as_bytes(std::span(bytes)), "here");
}

// One tensor "a" of the given fields.
std::string entry(const std::string& fields) {
  return "{\"a\":{" + fields + "}}";
}

struct Fault {
  const char* what;
  std::string bytes;
  const char* message;  // after "here: "
};

void PrintTo(const Fault& fault, std::ostream* out) {
  *out << fault.what;
}

const std::string kTwo =  // two tensors of 8 bytes
    R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})";

std::string two_with(const std::string& from, const std::string& to) {
  std::string text = kTwo;
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string many_tensors(std::size_t count) {
  std::string text = "{";
  for (std::size_t i = 0; i < count; ++i) {
    text += fmt::format("{}\"{}\":{{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", i ? "," : "", i);
  }
  return text + "}";
}

class SafetensorsFault : public ::testing::TestWithParam<Fault> {};

TEST_P(SafetensorsFault, HasItsOwnMessage) {
  EXPECT_EQ(message_of([&] { open_image(GetParam().bytes); }), std::string("here: ") + GetParam().message);
}

// Fault M1: wrong header lengths.
const auto kLengthFaults = ::testing::Values(
    Fault{"file of 7 bytes", std::string(7, '\0'),
          "7 bytes, too short for a safetensors file; it is truncated or of another kind"},
    Fault{"header length 0", image("", 4), "the header is empty; this is no safetensors file"},
    Fault{"header length 7", length_bytes(7) + kTwo, "the header is not valid JSON at header byte 8"},
    Fault{"header longer than the file", length_bytes(500) + kTwo,
          "a header of 500 bytes in a file of 116; the file is truncated or of another kind"},
    Fault{"header over 100 MB", length_bytes(100'000'001) + kTwo,
          "a header of 100000001 bytes, the limit is 100000000; this is no safetensors file or it is damaged"},
    Fault{"header length 2^64-1", length_bytes(UINT64_MAX) + kTwo,
          "a header of 18446744073709551615 bytes, the limit is 100000000; this is no safetensors file or it is "
          "damaged"});
INSTANTIATE_TEST_SUITE_P(Length, SafetensorsFault, kLengthFaults);

// Fault M2: invalid headers.
const auto kJsonFaults = ::testing::Values(
    Fault{"not UTF-8", image("{\"\xff\":1}", 0), "the header is not UTF-8 at header byte 2"},
    Fault{"overlong UTF-8", image("{\"\xc0\xaf\":1}", 0), "the header is not UTF-8 at header byte 2"},
    Fault{"surrogate", image("{\"\xed\xa0\x80\":1}", 0), "the header is not UTF-8 at header byte 2"},
    Fault{"cut UTF-8", image("{}\xe2\x82", 0), "the header is not UTF-8 at header byte 2"},
    Fault{"NUL padding", image(std::string("{}\0\0", 4), 0), "the header contains a NUL at header byte 2"},
    Fault{"not JSON", image("{hello}", 0), "the header is not valid JSON at header byte 2"},
    Fault{"unfinished JSON", image("{\"a\":", 0), "the header is not valid JSON at header byte 6"},
    Fault{"array", image("[1]", 0), "the header is not a JSON object: it must start with {"},
    Fault{"leading space", image(" {}", 0), "the header is not a JSON object: it must start with {"},
    Fault{"trailing bytes", image("{} x", 0), "bytes follow the JSON object of the header, at header byte 4"},
    Fault{"nesting", image(entry(R"("dtype":)" + std::string(100000, '[')), 0), "tensor \"a\": dtype must be a string"},
    Fault{"deep shape", image(entry(R"("shape":[[1]])"), 0), "tensor \"a\": shape must contain whole numbers only"},
    Fault{"entry is a number", image(R"({"a":1})", 0), "tensor \"a\": expected an object"},
    Fault{"metadata is a list", image(R"({"__metadata__":[]})", 0), "__metadata__ must be an object"},
    Fault{"metadata value", image(R"({"__metadata__":{"k":1}})", 0),
          "__metadata__: the value of \"k\" must be a string"},
    Fault{"metadata object", image(R"({"__metadata__":{"k":{}}})", 0),
          "__metadata__: the value of \"k\" must be a string"},
    Fault{"metadata twice", image(R"({"__metadata__":{},"__metadata__":{}})", 0), "__metadata__ occurs twice"},
    Fault{"metadata key twice", image(R"({"__metadata__":{"k":"1","k":"2"}})", 0),
          "the key \"k\" occurs twice in __metadata__"});
INSTANTIATE_TEST_SUITE_P(Json, SafetensorsFault, kJsonFaults);

// M4, and the duplicate names of M3
const auto kTensorFaults = ::testing::Values(
    Fault{"name twice", image(two_with("\"b\"", "\"a\""), 16), "the tensor \"a\" occurs twice"},
    Fault{"name twice by escape", image(two_with("\"b\"", "\"\\u0061\""), 16), "the tensor \"a\" occurs twice"},
    Fault{"long name", image("{\"" + std::string(4097, 'n') + "\":{}}", 0),
          "a tensor name of 4097 bytes, the limit is 4096"},
    Fault{"control character", image(R"({"a\u001b[2J":{}})", 0), "a tensor name contains a control character"},
    Fault{"C1 control character", image(R"({"a\u009b2J":{}})", 0), "a tensor name contains a control character"},
    Fault{"key missing", image(entry(R"("dtype":"F32","shape":[2])"), 8), "tensor \"a\": data_offsets is missing"},
    Fault{"dtype missing", image(entry(R"("shape":[2],"data_offsets":[0,8])"), 8), "tensor \"a\": dtype is missing"},
    Fault{"key twice", image(entry(R"("dtype":"F32","dtype":"F32")"), 8),
          "tensor \"a\": the key \"dtype\" occurs twice"},
    Fault{"key unknown", image(entry(R"("strides":[1])"), 8),
          "tensor \"a\": unknown key \"strides\", expected dtype, shape and data_offsets"},
    Fault{"dtype unknown", image(two_with("F32", "F33"), 16), "tensor \"a\": unknown dtype \"F33\""},
    Fault{"dtype unprintable", image(two_with("F32", "\\u001b[2J"), 16), "tensor \"a\": unknown dtype \"?[2J\""},
    Fault{"dtype is a number", image(two_with("\"F32\"", "32"), 16), "tensor \"a\": dtype must be a string"},
    Fault{"shape is a number", image(two_with("[2]", "2"), 16), "tensor \"a\": shape must be a list of whole numbers"},
    Fault{"negative dimension", image(two_with("[2]", "[-2]"), 16), "tensor \"a\": shape contains a negative number"},
    Fault{"float dimension", image(two_with("[2]", "[2.0]"), 16),
          "tensor \"a\": shape contains a number that is not a whole number below 2^64"},
    Fault{"dimension of 2^64", image(two_with("[2]", "[18446744073709551616]"), 16),
          "tensor \"a\": shape contains a number that is not a whole number below 2^64"},
    Fault{"string dimension", image(two_with("[2]", "[\"2\"]"), 16),
          "tensor \"a\": shape must contain whole numbers only"},
    Fault{"rank 9", image(two_with("[2]", "[1,1,1,1,1,1,1,1,2]"), 16), "tensor \"a\": more than 8 dimensions"},
    Fault{"product overflows", image(two_with("[2]", "[4294967296,4294967296,0]"), 16),
          "tensor \"a\": the size of shape [4294967296, 4294967296, 0] overflows 64 bits"},
    Fault{"bytes overflow", image(two_with("[2]", "[4611686018427387906]"), 16),
          "tensor \"a\": the size of shape [4611686018427387906] overflows 64 bits"},
    Fault{"size mismatch", image(two_with("[2]", "[3]"), 16),
          "tensor \"a\": data_offsets [0, 8] hold 8 bytes, its shape and dtype need 12"},
    Fault{"one offset", image(two_with("[0,8]", "[0]"), 16), "tensor \"a\": data_offsets has 1 numbers, expected 2"},
    Fault{"three offsets", image(two_with("[0,8]", "[0,8,8]"), 16),
          "tensor \"a\": data_offsets has 3 numbers, expected 2"},
    Fault{"negative offset", image(two_with("[0,8]", "[-8,0]"), 16),
          "tensor \"a\": data_offsets contains a negative number"},
    Fault{"reversed", image(two_with("[0,8]", "[8,0]"), 16), "tensor \"a\": data_offsets [8, 0] are reversed"});
INSTANTIATE_TEST_SUITE_P(Tensor, SafetensorsFault, kTensorFaults);

// Fault M3: overlapping data and gaps.
const auto kLayoutFaults = ::testing::Values(
    Fault{"overlap", image(two_with("[8,16]", "[4,12]"), 12), "the data of tensors \"a\" and \"b\" overlap at byte 4"},
    Fault{"aliases", image(two_with("[8,16]", "[0,8]"), 8), "the data of tensors \"a\" and \"b\" overlap at byte 0"},
    Fault{"hole", image(two_with("[8,16]", "[12,20]"), 20), "4 bytes before tensor \"b\" belong to no tensor"},
    Fault{"not from 0", image(two_with("[0,8]", "[16,24]"), 24), "8 bytes before tensor \"b\" belong to no tensor"},
    Fault{"beyond the file", image(two_with("[8,16]", "[800,808]"), 16),
          "tensor \"b\": data_offsets [800, 808] reach beyond the 16 bytes of data; the file is truncated or damaged"},
    Fault{"truncated", image(kTwo, 15),
          "tensor \"b\": data_offsets [8, 16] reach beyond the 15 bytes of data; the file is truncated or damaged"},
    Fault{"grown", image(kTwo, 17), "1 bytes follow the data of the last tensor; the file has grown or is damaged"},
    Fault{"data without tensors", image("{}", 1),
          "1 bytes follow the data of the last tensor; the file has grown or is damaged"});
INSTANTIATE_TEST_SUITE_P(Layout, SafetensorsFault, kLayoutFaults);

TEST(Safetensors, TakesWhatTheFormatAllows) {
  EXPECT_EQ(open_image(image("{}", 0)).tensors().size(), 0u);
  EXPECT_EQ(open_image(image("{}      ", 0)).tensors().size(), 0u);
  EXPECT_EQ(open_image(image(many_tensors(1000), 0)).tensors().size(), 1000u);

  // The header lists tensors in any order, including scalars and empty tensors.
  const auto bytes = image(R"({"z":{"data_offsets":[4,4],"shape":[3,0],"dtype":"F64"},
    "y":{"dtype":"I32","shape":[1,1],"data_offsets":[4,8]},"__metadata__":{"format":"pt"},
    "x":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})",
                           8);
  const auto file = open_image(bytes);
  ASSERT_EQ(file.tensors().size(), 3u);
  EXPECT_EQ(file.tensors()[0].name, "x");
  EXPECT_EQ(file.tensors()[0].elements(), 1u);
  EXPECT_EQ(file.tensors()[1].name, "z");
  EXPECT_EQ(file.tensors()[2].name, "y");
  EXPECT_EQ(file.find("z")->elements(), 0u);
  EXPECT_EQ(file.find("w"), nullptr);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  std::vector<float> one(1);
  EXPECT_EQ(message_of([&] { file.read_as<float>(*file.find("y"), one); }),
            "here: tensor \"y\" is I32; only F32, BF16, F16 and F64 can be read as numbers");
}

TEST(Safetensors, TheNumberOfTensorsIsLimited) {
  EXPECT_EQ(parse_safetensors_header(many_tensors(10), 0, "here", 10).tensors.size(), 10u);
  EXPECT_EQ(message_of([] { parse_safetensors_header(many_tensors(11), 0, "here", 10); }),
            "here: more than 10 tensors");
}

TEST(Safetensors, AMillionAndOneTensorsAreTooMany) {
  EXPECT_EQ(message_of([] { open_image(image(many_tensors(kMaxTensors + 1), 0)); }), "here: more than 1000000 tensors");
}

struct SafetensorsFileTest : TempFolderTest {};

TEST_F(SafetensorsFileTest, RoundTripsEveryType) {
  const std::vector<TensorSpec> specs = {
      {"z", DType::F32, {3, 5}}, {"b", DType::BF16, {15}},  {"h", DType::F16, {5, 3}}, {"d", DType::F64, {15, 1}},
      {"a", DType::F32, {15}},   {"e", DType::F32, {0, 4}}, {"u", DType::U8, {7}},     {"s", DType::I64, {}}};
  std::vector<float> values(15);
  std::iota(values.begin(), values.end(), -7.0f);  // exact in every type
  const std::vector<std::byte> raw(8, std::byte{42});
  SafetensorsWriter writer(folder / "x.safetensors", specs, {{"who", "me \"\\ \xc3\xa9"}});
  std::string order;
  for (const auto& tensor : writer.tensors()) {
    order += tensor.name;
    if (is_convertible(tensor.dtype)) {
      // In two pieces, to show that pieces are joined.
      const auto count = tensor.elements();
      writer.write_as<float>(tensor, std::span(values).first(count / 3));
      writer.write_as<float>(tensor, std::span(values).subspan(count / 3, count - count / 3));
    } else {
      writer.write(tensor, std::span(raw).first(tensor.bytes()));
    }
  }
  EXPECT_EQ(order, "sdaezbhu");  // the dtype order of the reference implementation, largest first, then names
  EXPECT_FALSE(fs::exists(folder / "x.safetensors"));
  writer.commit();

  const auto file = SafetensorsFile::open(folder / "x.safetensors");
  EXPECT_EQ(file.metadata(), (Metadata{{"format", "pt"}, {"who", "me \"\\ \xc3\xa9"}}));
  EXPECT_EQ(file.tensors().size(), specs.size());
  for (const auto& spec : specs) {
    const TensorInfo* tensor = file.find(spec.name);
    ASSERT_NE(tensor, nullptr) << spec.name;
    EXPECT_EQ(static_cast<const TensorSpec&>(*tensor), spec);
    if (!is_convertible(spec.dtype)) continue;
    std::vector<float> floats(tensor->elements());
    file.read_as<float>(*tensor, floats);
    EXPECT_TRUE(std::equal(floats.begin(), floats.end(), values.begin())) << spec.name;
    std::vector<double> doubles(tensor->elements());
    file.read_as<double>(*tensor, doubles);
    EXPECT_TRUE(std::equal(doubles.begin(), doubles.end(), values.begin())) << spec.name;
    std::vector<BFloat16> shorts(tensor->elements());
    file.read_as<BFloat16>(*tensor, shorts);
    for (std::size_t i = 0; i < shorts.size(); ++i) EXPECT_EQ(static_cast<float>(shorts[i]), values[i]) << spec.name;
  }
  std::vector<std::byte> bytes(7);
  file.read(*file.find("u"), bytes);
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), raw.begin()));
}

TEST_F(SafetensorsFileTest, DataStartsAtAMultipleOfEight) {
  for (std::size_t length = 1; length <= 9; ++length) {
    const std::string name(length, 'n');
    SafetensorsWriter writer(folder / "x", {{name, DType::U8, {1}}});
    const std::byte byte{7};
    writer.write(writer.tensors()[0], std::span(&byte, 1));
    writer.commit();
    EXPECT_EQ(fs::file_size(folder / "x") % 8, 1u);
    EXPECT_NE(SafetensorsFile::open(folder / "x").find(name), nullptr);
  }
}

TEST_F(SafetensorsFileTest, LargeTensorsGoThroughSmallBuffers) {
  std::vector<float> values(700001);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 251) - 125.0f;
  SafetensorsWriter writer(folder / "x", {{"t", DType::F64, {values.size()}}});
  writer.write_as<float>(writer.tensors()[0], values);
  writer.commit();
  const auto file = SafetensorsFile::open(folder / "x");
  std::vector<float> back(values.size());
  file.read_as<float>(file.tensors()[0], back);
  EXPECT_EQ(back, values);
}

TEST_F(SafetensorsFileTest, MisuseOfTheWriterIsCaught) {
  const std::vector<TensorSpec> specs = {{"a", DType::F32, {2}}, {"b", DType::F32, {2}}};
  const std::vector<float> three(3), two(2);
  SafetensorsWriter writer(folder / "x", specs);
  EXPECT_THROW(writer.commit(), Error);
  EXPECT_THROW(writer.write_as<float>(writer.tensors()[1], two), Error);
  EXPECT_THROW(writer.write_as<float>(writer.tensors()[0], three), Error);
  writer.write_as<float>(writer.tensors()[0], two);
  EXPECT_THROW(writer.commit(), Error);

  const auto refusal = [&](std::vector<TensorSpec> tensors) {
    return message_of([&] { SafetensorsWriter(folder / "y", tensors); }).substr((folder / "y").string().size());
  };
  EXPECT_EQ(refusal({specs[0], specs[0]}), ": the tensor \"a\" occurs twice");
  EXPECT_EQ(refusal({{"__metadata__", DType::F32, {}}}), ": a tensor cannot be named \"__metadata__\"");
  EXPECT_EQ(refusal({{"\xff", DType::F32, {}}}), ": a tensor cannot be named \"(not UTF-8)\"");
  EXPECT_EQ(refusal({{"a\n", DType::F32, {}}}), ": a tensor name contains a control character");
  EXPECT_EQ(refusal({{"a", DType::F32, {UINT64_MAX}}}),
            ": tensor \"a\": the size of shape [18446744073709551615] overflows 64 bits");
  EXPECT_NE(message_of([&] {
              SafetensorsWriter(folder / "y", {{"a", DType::U8, {1ull << 60}}});
            }).find("are free"),
            std::string::npos);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator{}), 1) << "only the open temporary";
}

TEST_F(SafetensorsFileTest, AFileThatShrinksWhileOpenIsAnError) {
  write_durably(folder / "x", image(kTwo, 16));
  const auto file = SafetensorsFile::open(folder / "x");
  fs::resize_file(folder / "x", fs::file_size(folder / "x") - 4);
  std::vector<float> values(2);
  file.read_as<float>(file.tensors()[0], values);
  EXPECT_NE(message_of([&] { file.read_as<float>(file.tensors()[1], values); }).find("file ends at byte"),
            std::string::npos);
}

TEST_F(SafetensorsFileTest, EveryFailingCallLeavesTheOldFile) {
  const auto write = [&](float value) {
    const std::vector<float> values(4, value);
    SafetensorsWriter writer(folder / "x", {{"a", DType::BF16, {4}}, {"b", DType::F32, {4}}});
    for (const auto& tensor : writer.tensors()) writer.write_as<float>(tensor, values);
    writer.commit();
  };
  testing::fail_io_call(0);
  write(1.0f);
  const auto calls = testing::fail_io_call(0);
  ASSERT_GE(calls, 5u);
  for (std::uint64_t k = 1; k <= calls; ++k) {
    testing::fail_io_call(k);
    EXPECT_THROW(write(2.0f), Error);
    testing::fail_io_call(0);
    const auto file = SafetensorsFile::open(folder / "x");
    std::vector<float> values(4);
    file.read_as<float>(*file.find("a"), values);
    EXPECT_EQ(values, std::vector<float>(4, k < calls ? 1.0f : 2.0f));  // the last call syncs the folder
  }
}

}  // namespace
}  // namespace essh
