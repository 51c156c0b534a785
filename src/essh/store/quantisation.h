#pragma once
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "essh/base/bfloat16.h"
#include "essh/model/tensors.h"
#include "essh/store/dtype.h"

namespace essh {

// Quantised matrices. An element is scale * code; groups of 32 elements of a row share a scale, and the last group of a
// row may be shorter. A matrix NAME is stored as
//   NAME        rows x columns codes: q8 as I8, -127 to 127; fp8 as F8_E4M3;
//               q4 as U8, rows x ceil(columns / 2): the code of column 2j plus 8 in the low bits of byte j, that of
//               2j + 1 in the high bits
//   NAME_scale  rows x ceil(columns / 32) as BF16, rounded up, so that no code is cut off
enum class Quantisation : std::uint8_t { Q8, Q4, FP8 };
inline constexpr Index kQuantisationGroup = 32;

// "q8", "q4" or "fp8".
std::string_view quantisation_name(Quantisation quantisation);
std::optional<Quantisation> quantisation_from_name(std::string_view name);
// By the dtype of its codes.
std::optional<Quantisation> quantisation_of(DType codes);
DType code_dtype(Quantisation quantisation);

// The tensors that replace a tensor in a quantised folder. Only matrices are quantised; in q4 the embedding, which is
// also the head, is q8.
std::optional<Quantisation> tensor_quantisation(const ModelTensor& tensor, Quantisation folder);
std::string scale_name(std::string_view tensor);
// Bytes of the codes of a row, and its scales.
Index code_bytes(Quantisation quantisation, Index columns);
Index scale_count(Index columns);

// A quantised matrix in host memory, as a file stores it. Prefixes of rows and columns are quantised matrices too.
struct CodedWeight {
  Quantisation quantisation = Quantisation::Q8;
  const std::byte* codes = nullptr;   // null for a tensor that is not quantised
  const std::byte* scales = nullptr;  // BF16, perhaps misaligned
  Index rows = 0, cols = 0;
  Index code_stride = 0, scale_stride = 0;  // bytes from row to row

  Index bytes() const { return rows * (code_bytes(quantisation, cols) + scale_count(cols) * Index{sizeof(BFloat16)}); }
};

void quantise_row(Quantisation quantisation, std::span<const float> row, std::span<std::byte> codes,
                  std::span<BFloat16> scales);
void dequantise_row(Quantisation quantisation, std::span<const std::byte> codes, std::span<const BFloat16> scales,
                    std::span<float> row);

}  // namespace essh
