#include <fmt/format.h>

#include "essh/store/safetensors.h"
#include "tests/fuzz/driver.h"
#include "tests/fuzz/mutate.h"

namespace essh {
namespace {

struct Image {
  std::string header;  // JSON text
  std::string data;
};

Image image_of(const std::vector<TensorSpec>& tensors, const Metadata& metadata) {
  const auto header = plan_safetensors(tensors, metadata, "seed");
  Image image{safetensors_prefix(header, "seed").substr(8), ""};
  for (const auto& tensor : header.tensors) {
    for (std::uint64_t i = 0; i < tensor.bytes(); ++i) image.data += static_cast<char>(image.data.size() * 37);
  }
  return image;
}

std::vector<Image> seeds() {
  std::vector<TensorSpec> every_type;
  for (std::size_t i = 0; i < kDTypeCount; ++i) {
    every_type.push_back({fmt::format("t{}", i), static_cast<DType>(i), {3}});
  }
  return {
      image_of({}, {}),
      image_of({{"weight", DType::F32, {2, 3}}}, {{"format", "pt"}}),
      image_of({{"a", DType::BF16, {4, 2}}, {"b", DType::F16, {5}}, {"c", DType::F64, {2}}},
               {{"format", "pt"}, {"k", "v"}}),
      image_of(
          {{"scalar", DType::F32, {}}, {"empty", DType::F32, {0, 7}}, {"one", DType::U8, {1, 1, 1, 1, 1, 1, 1, 1}}},
          {}),
      image_of(every_type, {}),
      {R"({"z":{"data_offsets":[4,8],"dtype":"I32","shape":[1]},"\u0061":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
       "01234567"}};
}

void put_length(std::string& image, std::uint64_t length) {
  for (std::size_t i = 0; i < 8; ++i) image[i] = static_cast<char>(length >> (8 * i) & 0xff);
}

// Makes inputs from the seeds and reads each like the program: opens the file, then reads every tensor as numbers.
class SafetensorsFuzzer {
 public:
  explicit SafetensorsFuzzer(std::uint64_t seed)
      : mutator_(seed, {"\"__metadata__\":{}",
                        "\"__metadata__\":",
                        "\"dtype\":\"F32\"",
                        "\"shape\":[]",
                        "\"data_offsets\":[0,0]",
                        "\"BF16\"",
                        "\"F64\"",
                        "[",
                        "]",
                        "{",
                        "}",
                        ",",
                        ":",
                        "\"",
                        "\\",
                        "\\u0000",
                        "\\ud800",
                        " ",
                        "null",
                        "true",
                        "\xff",
                        std::string(1, '\0'),
                        "\xef\xbb\xbf",
                        "[[[[[[[[",
                        "0,0,0,0,0,0,0,0,0"}) {}

  void operator()() {
    const Image& seed = mutator_.pick(seeds_);
    const Image& other = mutator_.pick(seeds_);
    if (mutator_.one_in(8)) {  // blind damage
      assemble(seed);
      mutator_.mutate(image_, other.header);
    } else {
      text_.header = seed.header;
      text_.data = seed.data;
      do mutator_.mutate_json(text_.header, other.header);
      while (mutator_.one_in(4));
      if (mutator_.one_in(6)) text_.data.resize(mutator_.rng().below(text_.data.size() + 16), 'x');
      assemble(text_);
    }
    if (mutator_.one_in(16) && image_.size() >= 8) put_length(image_, mutator_.number());
    read();
  }

 private:
  void assemble(const Image& image) {
    image_.assign(8, '\0');
    put_length(image_, image.header.size());
    image_ += image.header;
    image_ += image.data;
  }

  void read() {
    const auto file = SafetensorsFile::from_memory(std::as_bytes(std::span(image_)), "input");
    for (const auto& tensor : file.tensors()) {
      if (is_convertible(tensor.dtype)) {
        values_.resize(tensor.elements());
        file.read_as<float>(tensor, values_);
      } else {
        bytes_.resize(tensor.bytes());
        file.read(tensor, bytes_);
      }
      if (file.find(tensor.name) != &tensor) throw std::logic_error("a tensor is not found by its name");
    }
  }

  std::vector<Image> seeds_ = seeds();
  fuzz::Mutator mutator_;
  Image text_;
  std::string image_;
  std::vector<float> values_;
  std::vector<std::byte> bytes_;
};

const fuzz::Registered<SafetensorsFuzzer> kSafetensorsFuzzer("safetensors");

}  // namespace
}  // namespace essh
