#include "essh/store/stored_model.h"

#include <bit>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>

#include "essh/model/slice.h"

namespace essh {
namespace fs = std::filesystem;
namespace {

DType dtype_of(Format format) {
  switch (format) {
    case Format::F64:
      return DType::F64;
    case Format::F32:
      return DType::F32;
    case Format::BF16:
      return DType::BF16;
    case Format::F16:
      return DType::F16;
  }
  return DType::F32;
}

std::optional<Format> format_of(DType dtype) {
  for (const auto format : {Format::F64, Format::F32, Format::BF16, Format::F16}) {
    if (dtype_of(format) == dtype) return format;
  }
  return std::nullopt;
}

// Elements whose exponent is all ones.
template <class Bits>
std::uint64_t count_special(const Weight& weight, Bits exponent) {
  std::uint64_t count = 0;
  for (Index r = 0; r < weight.rows; ++r) {
    const auto* row = reinterpret_cast<const Bits*>(weight.row(r));
    for (Index c = 0; c < weight.cols; ++c) count += (row[c] & exponent) == exponent;
  }
  return count;
}

std::uint64_t count_non_finite(const Weight& weight) {
  switch (weight.format) {
    case Format::F64:
      return count_special<std::uint64_t>(weight, 0x7ff0000000000000u);
    case Format::F32:
      return count_special<std::uint32_t>(weight, 0x7f800000u);
    case Format::BF16:
      return count_special<std::uint16_t>(weight, 0x7f80u);
    case Format::F16:
      return count_special<std::uint16_t>(weight, 0x7c00u);
  }
  return 0;
}

}  // namespace

template <class T>
void read_weight(const Weight& weight, std::span<T> values) {
  ESSH_ASSERT(static_cast<Index>(values.size()) == weight.rows * weight.cols);
  const auto read = [&](Index first, Index elements, std::span<T> out) {
    decode_elements<T>(dtype_of(weight.format),
                       {weight.row(first), static_cast<std::size_t>(stored_bytes(weight.format, elements))}, out);
  };
  if (weight.is_dense()) return read(0, weight.rows * weight.cols, values);
  const auto cols = static_cast<std::size_t>(weight.cols);
  for (Index r = 0; r < weight.rows; ++r)
    read(r, weight.cols, values.subspan(static_cast<std::size_t>(r) * cols, cols));
}

template void read_weight(const Weight&, std::span<float>);
template void read_weight(const Weight&, std::span<BFloat16>);

struct StoredModel::Content {
  ModelConfig config;
  Weights weights;
  fs::path folder;
  std::optional<TensorFiles> files;
  std::optional<LoadedModel> loaded;
  std::deque<std::vector<float>> converted;
  std::deque<std::vector<std::byte>> copied;
  std::once_flag hashed;
  std::string hash;
};

StoredModel StoredModel::open(const fs::path& folder, NonFinite policy) {
  auto content = std::make_shared<Content>();
  content->config = read_config(folder);
  content->folder = folder;
  content->files = TensorFiles::map(folder);
  check_tensors(content->config, *content->files).fail_if_any(folder.string());
  Problems problems;
  for (const auto& spec : tensor_list(content->config)) {
    const auto& located = *content->files->find(spec.name);
    if (spec.is_matrix() && quantisation_of(located.info->dtype)) {
      auto& values = content->converted.emplace_back(static_cast<std::size_t>(spec.rows * spec.cols));
      read_tensor(spec, *content->files, values);
      const auto bad = policy == NonFinite::Refuse ? count_non_finite(std::span<const float>(values)) : 0;
      if (bad > 0) problems.add(fmt::format("{} has {} values that are not finite", spec.name, bad));
      content->weights.tensors.emplace_back(Format::F32, values.data(), spec.rows, spec.cols);
      continue;
    }
    const auto bytes = located.file->mapped(*located.info);
    const auto format = format_of(located.info->dtype);
    Weight weight(*format, bytes.data(), spec.rows, spec.cols);
    const bool aligned =
        reinterpret_cast<std::uintptr_t>(bytes.data()) % static_cast<std::uintptr_t>(traits(*format).block_bytes) == 0;
    if (!aligned || *format == Format::F64 || (!spec.is_matrix() && *format != Format::F32)) {
      auto& values = content->converted.emplace_back(static_cast<std::size_t>(spec.rows * spec.cols));
      located.file->read_as<float>(*located.info, values);
      weight = Weight(Format::F32, values.data(), spec.rows, spec.cols);
    }
    if (const auto bad = policy == NonFinite::Refuse ? count_non_finite(weight) : 0; bad > 0)
      problems.add(fmt::format("{} has {} values that are not finite", spec.name, bad));
    content->weights.tensors.push_back(weight);
  }
  problems.fail_if_any(folder.string());
  return StoredModel(std::move(content));
}

StoredModel::StoredModel(LoadedModel model, std::string hash) : content_(std::make_shared<Content>()) {
  content_->config = model.config;
  content_->loaded = std::move(model);
  content_->weights = content_->loaded->parameters.weights();
  content_->hash = std::move(hash);
}

StoredModel StoredModel::cut(Capacity capacity) const {
  auto content = std::make_shared<Content>();
  content->config = slice(config(), capacity);
  content->folder = content_->folder;
  content->hash = content_->hash;
  for (const auto& weight : slice(config(), weights(), capacity).tensors) {
    auto& bytes = content->copied.emplace_back(static_cast<std::size_t>(weight.bytes()));
    const auto row_bytes = static_cast<std::size_t>(stored_bytes(weight.format, weight.cols));
    for (Index r = 0; r < weight.rows; ++r)
      std::memcpy(bytes.data() + static_cast<std::size_t>(r) * row_bytes, weight.row(r), row_bytes);
    content->weights.tensors.emplace_back(weight.format, bytes.data(), weight.rows, weight.cols);
  }
  return StoredModel(std::move(content));
}

const ModelConfig& StoredModel::config() const {
  return content_->config;
}

const Weights& StoredModel::weights() const {
  return content_->weights;
}

const std::string& StoredModel::hash() const {
  std::call_once(content_->hashed, [&] {
    if (!content_->folder.empty()) content_->hash = model_hash(content_->folder);
  });
  return content_->hash;
}

void StoredModel::check_tokens(std::span<const std::int32_t> tokens, std::string_view place) const {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= config().vocab_size) {
      fail(ErrorKind::Usage, "{}: token {} is {}, this model's vocabulary has ids 0 to {}", place, i, tokens[i],
           config().vocab_size - 1);
    }
  }
}

}  // namespace essh
