#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "essh/store/dtype.h"

namespace essh {

inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
inline constexpr std::size_t kMaxTensors = 1'000'000;
inline constexpr std::size_t kMaxRank = 8;
inline constexpr std::size_t kMaxNameBytes = 4096;

using Metadata = std::map<std::string, std::string>;

struct TensorSpec {
  std::string name;
  DType dtype = DType::F32;
  std::vector<std::uint64_t> shape;  // outermost first; empty for a scalar

  bool operator==(const TensorSpec&) const = default;
};

// A tensor and its place: bytes [begin, end) of the data that follows the header.
struct TensorInfo : TensorSpec {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  std::uint64_t bytes() const { return end - begin; }
  std::uint64_t elements() const { return bytes() / dtype_size(dtype); }
};

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // in the order of their data: the first begins at 0, each where the last one ended
  std::vector<std::uint32_t> by_name;  // indices into `tensors`, sorted by name
  Metadata metadata;
};

// Reads the JSON text of a header whose data has `data_bytes` bytes. Everything is checked; messages start with
// `place`.
SafetensorsHeader parse_safetensors_header(std::string_view text, std::uint64_t data_bytes, std::string_view place,
                                           std::size_t max_tensors = kMaxTensors);

// The tensors in the order of the reference implementation: larger types first, then by name. Names must be unique and
// every tensor must pass the checks of the reader.
SafetensorsHeader plan_safetensors(const std::vector<TensorSpec>& tensors, Metadata metadata, std::string_view place);

// The first bytes of the file, up to the data: length, JSON, spaces to a multiple of 8.
std::string safetensors_prefix(const SafetensorsHeader& header, std::string_view place);

// Bytes of the whole tensor; refuses a name, rank or size that no file may have.
std::uint64_t checked_tensor_bytes(const TensorSpec& tensor, std::string_view place);

}  // namespace essh
