#include "essh/store/quantisation.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "essh/base/e4m3.h"
#include "essh/base/error.h"

namespace essh {
namespace {

struct QuantisationFacts {
  std::string_view name;
  DType codes;
  float largest;  // largest code
};
constexpr std::array<QuantisationFacts, 3> kQuantisations = {
    {{"q8", DType::I8, 127}, {"q4", DType::U8, 7}, {"fp8", DType::F8_E4M3, 448}}};

const QuantisationFacts& facts(Quantisation quantisation) {
  return kQuantisations[static_cast<std::size_t>(quantisation)];
}

BFloat16 rounded_up(float value) {
  BFloat16 rounded;
  const auto word = std::bit_cast<std::uint32_t>(value);
  rounded.bits = static_cast<std::uint16_t>((word >> 16) + ((word & 0xffffu) != 0 ? 1 : 0));
  return rounded;
}

}  // namespace

std::string_view quantisation_name(Quantisation quantisation) {
  return facts(quantisation).name;
}

std::optional<Quantisation> quantisation_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kQuantisations.size(); ++i) {
    if (kQuantisations[i].name == name) return static_cast<Quantisation>(i);
  }
  return std::nullopt;
}

std::optional<Quantisation> quantisation_of(DType codes) {
  for (std::size_t i = 0; i < kQuantisations.size(); ++i) {
    if (kQuantisations[i].codes == codes) return static_cast<Quantisation>(i);
  }
  return std::nullopt;
}

DType code_dtype(Quantisation quantisation) {
  return facts(quantisation).codes;
}

std::optional<Quantisation> tensor_quantisation(const ModelTensor& tensor, Quantisation folder) {
  if (!tensor.is_matrix()) return std::nullopt;
  const bool is_embedding = tensor.name == "model.embed_tokens.weight";
  return folder == Quantisation::Q4 && is_embedding ? Quantisation::Q8 : folder;
}

std::string scale_name(std::string_view tensor) {
  return std::string(tensor) + "_scale";
}

Index code_bytes(Quantisation quantisation, Index columns) {
  return quantisation == Quantisation::Q4 ? (columns + 1) / 2 : columns;
}

Index scale_count(Index columns) {
  return (columns + kQuantisationGroup - 1) / kQuantisationGroup;
}

void quantise_row(Quantisation quantisation, std::span<const float> row, std::span<std::byte> codes,
                  std::span<BFloat16> scales) {
  const auto columns = std::ssize(row);
  ESSH_ASSERT(std::ssize(codes) == code_bytes(quantisation, columns) && std::ssize(scales) == scale_count(columns));
  if (quantisation == Quantisation::Q4) std::ranges::fill(codes, std::byte{0});
  for (Index group = 0; group < scale_count(columns); ++group) {
    const Index begin = group * kQuantisationGroup, end = std::min(begin + kQuantisationGroup, columns);
    float largest = 0;
    for (Index c = begin; c < end; ++c) {
      const float size = std::abs(row[static_cast<std::size_t>(c)]);
      largest = size > largest || std::isnan(size) ? size : largest;
      if (std::isnan(largest)) break;
    }
    const auto scale = scales[static_cast<std::size_t>(group)] = rounded_up(largest / facts(quantisation).largest);
    if (!std::isfinite(largest)) fail(ErrorKind::BadFile, "a value that is not finite cannot be quantised");
    for (Index c = begin; c < end; ++c) {
      const float x = largest > 0 ? row[static_cast<std::size_t>(c)] / static_cast<float>(scale) : 0.0f;
      if (quantisation == Quantisation::FP8) {
        codes[static_cast<std::size_t>(c)] = std::byte{to_e4m3(x)};
        continue;
      }
      const float most = facts(quantisation).largest;
      const auto code = static_cast<int>(std::nearbyint(std::clamp(x, -most, most)));
      if (quantisation == Quantisation::Q8)
        codes[static_cast<std::size_t>(c)] = std::bit_cast<std::byte>(static_cast<std::int8_t>(code));
      else
        codes[static_cast<std::size_t>(c / 2)] |= static_cast<std::byte>((code + 8) << (c % 2 * 4));
    }
  }
}

void dequantise_row(Quantisation quantisation, std::span<const std::byte> codes, std::span<const BFloat16> scales,
                    std::span<float> row) {
  const auto columns = std::ssize(row);
  ESSH_ASSERT(std::ssize(codes) == code_bytes(quantisation, columns) && std::ssize(scales) == scale_count(columns));
  for (Index c = 0; c < columns; ++c) {
    const auto scale = static_cast<float>(scales[static_cast<std::size_t>(c / kQuantisationGroup)]);
    float code = 0;
    switch (quantisation) {
      case Quantisation::Q8:
        code = static_cast<float>(std::bit_cast<std::int8_t>(codes[static_cast<std::size_t>(c)]));
        break;
      case Quantisation::Q4:
        code =
            static_cast<float>((std::to_integer<int>(codes[static_cast<std::size_t>(c / 2)]) >> (c % 2 * 4) & 15) - 8);
        break;
      case Quantisation::FP8:
        code = from_e4m3(std::to_integer<std::uint8_t>(codes[static_cast<std::size_t>(c)]));
        break;
    }
    row[static_cast<std::size_t>(c)] = scale * code;
  }
}

}  // namespace essh
