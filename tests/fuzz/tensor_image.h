#pragma once
#include <cstdint>
#include <string>

#include "tests/fuzz/mutate.h"

namespace essh::fuzz {

// A safetensors file in two parts, so that its header can be edited as JSON.
struct TensorImage {
  std::string header, data;

  static TensorImage of(const std::string& file) {
    std::uint64_t length = 0;
    for (std::size_t i = 0; i < 8; ++i)
      length |= static_cast<std::uint64_t>(static_cast<unsigned char>(file[i])) << (8 * i);
    return {file.substr(8, length), file.substr(8 + length)};
  }
  std::string file() const {
    std::string image;
    for (std::size_t i = 0; i < 8; ++i) image += static_cast<char>(header.size() >> (8 * i) & 0xff);
    return image + header + data;
  }
  // Blind damage, an edited header, or other values.
  void mutate(Mutator& mutator, const TensorImage& other) {
    switch (mutator.rng().below(4)) {
      case 0:
        mutator.mutate(data, other.data);
        break;
      case 1:
        for (int i = 0; i < 4 && !data.empty(); ++i)
          data[mutator.rng().below(data.size())] = static_cast<char>(mutator.rng().next());
        break;
      default:
        mutator.mutate_json(header, other.header);
    }
  }
};

}  // namespace essh::fuzz
