#include "essh/store/stored_model.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>

#include "essh/base/thread_pool.h"
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

// Dense codes and scales of a matrix.
CodedWeight coded_weight(Quantisation quantisation, const ModelTensor& tensor, const std::byte* codes,
                         const std::byte* scales) {
  return {.quantisation = quantisation,
          .codes = codes,
          .scales = scales,
          .rows = tensor.rows,
          .cols = tensor.cols,
          .code_stride = code_bytes(quantisation, tensor.cols),
          .scale_stride = scale_count(tensor.cols) * Index{sizeof(BFloat16)}};
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
  std::vector<CodedWeight> coded;  // empty, or one per tensor
  fs::path folder;
  std::optional<TensorFiles> files;
  std::optional<LoadedModel> loaded;
  std::deque<std::vector<float>> converted;
  std::deque<std::vector<std::byte>> copied;
  std::once_flag hashed;
  std::string hash;

  // A tensor in float32, owned here.
  std::span<float> convert(const ModelTensor& tensor) {
    auto& values = converted.emplace_back(static_cast<std::size_t>(tensor.rows * tensor.cols));
    weights.tensors.emplace_back(Format::F32, values.data(), tensor.rows, tensor.cols);
    return values;
  }
  std::span<std::byte> take(Index bytes) { return copied.emplace_back(static_cast<std::size_t>(bytes)); }
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
    auto& coded = content->coded.emplace_back();
    if (const auto quantisation = quantisation_of(located.info->dtype); quantisation && spec.is_matrix()) {
      const auto values = content->convert(spec);
      read_tensor(spec, *content->files, values);
      const auto bad = count_non_finite(std::span<const float>(values));
      if (bad > 0 && policy == NonFinite::Refuse)
        problems.add(fmt::format("{} has {} values that are not finite", spec.name, bad));
      const auto codes = located.file->mapped(*located.info);
      const auto& scales = *content->files->find(scale_name(spec.name));
      const bool beyond = *quantisation == Quantisation::Q8 && std::ranges::find(codes, std::byte{0x80}) != codes.end();
      if (bad == 0 && !beyond)
        coded = coded_weight(*quantisation, spec, codes.data(), scales.file->mapped(*scales.info).data());
      continue;
    }
    const auto bytes = located.file->mapped(*located.info);
    const auto format = format_of(located.info->dtype);
    Weight weight(*format, bytes.data(), spec.rows, spec.cols);
    const bool aligned =
        reinterpret_cast<std::uintptr_t>(bytes.data()) % static_cast<std::uintptr_t>(traits(*format).block_bytes) == 0;
    const bool summed = content->config.elastic.slopes && *format == Format::F16;  // slice() has no sums in float16
    if (!aligned || summed || *format == Format::F64 || (!spec.is_matrix() && *format != Format::F32)) {
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
  const auto tensors = tensor_list(content->config);
  for (const auto& from : coded(capacity)) {
    auto& to = content->coded.emplace_back();
    if (from.codes == nullptr) continue;
    const auto& tensor = tensors[content->coded.size() - 1];
    const auto copy_rows = [&](const std::byte* rows, Index stride, Index row_bytes) {
      const auto bytes = content->take(from.rows * row_bytes);
      for (Index r = 0; r < from.rows; ++r)
        std::memcpy(bytes.data() + r * row_bytes, rows + r * stride, static_cast<std::size_t>(row_bytes));
      return bytes.data();
    };
    const auto* codes = copy_rows(from.codes, from.code_stride, code_bytes(from.quantisation, from.cols));
    const auto* scales = copy_rows(from.scales, from.scale_stride, scale_count(from.cols) * Index{sizeof(BFloat16)});
    to = coded_weight(from.quantisation, tensor, codes, scales);
  }
  return StoredModel(std::move(content));
}

StoredModel StoredModel::stored_as(const MatrixFormat& format) const {
  ESSH_ASSERT(format.quantisation || format.dtype == DType::BF16);
  auto content = std::make_shared<Content>();
  content->config = config();
  content->config.torch_dtype = torch_name(format.dtype);
  content->config.quantization = quantization_config(format);
  content->folder = content_->folder;
  content->hash = content_->hash;
  ThreadPool pool(available_cores());
  const auto tensors = tensor_list(content->config);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& tensor = tensors[i];
    auto& coded = content->coded.emplace_back();
    if (!format.quantisation && tensor.is_matrix()) {
      const auto bytes = content->take(stored_bytes(Format::BF16, tensor.rows * tensor.cols));
      read_weight<BFloat16>(weights()[i], {reinterpret_cast<BFloat16*>(bytes.data()), bytes.size() / sizeof(BFloat16)});
      content->weights.tensors.emplace_back(Format::BF16, bytes.data(), tensor.rows, tensor.cols);
      continue;
    }
    const auto values = content->convert(tensor);
    read_weight<float>(weights()[i], values);
    const auto own = format.quantisation ? tensor_quantisation(tensor, *format.quantisation) : std::nullopt;
    if (!own) continue;
    const Index row_codes = code_bytes(*own, tensor.cols), row_scales = scale_count(tensor.cols);
    const auto codes = content->take(tensor.rows * row_codes),
               scales = content->take(tensor.rows * row_scales * Index{sizeof(BFloat16)});
    const auto sub = [](auto span, Index row, Index size) {
      return span.subspan(static_cast<std::size_t>(row * size), static_cast<std::size_t>(size));
    };
    const std::span factors(reinterpret_cast<BFloat16*>(scales.data()), scales.size() / sizeof(BFloat16));
    pool.split(tensor.rows, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t r = begin; r < end; ++r) {
        quantise_row(*own, sub(values, r, tensor.cols), sub(codes, r, row_codes), sub(factors, r, row_scales));
        dequantise_row(*own, sub(codes, r, row_codes), sub(factors, r, row_scales), sub(values, r, tensor.cols));
      }
    });
    coded = coded_weight(*own, tensor, codes.data(), scales.data());
  }
  return StoredModel(std::move(content));
}

const ModelConfig& StoredModel::config() const {
  return content_->config;
}

const Weights& StoredModel::weights() const {
  return content_->weights;
}

std::vector<CodedWeight> StoredModel::coded(Capacity capacity) const {
  const bool sums = config().elastic.slopes;  // which have no codes
  auto list = sums ? std::vector<CodedWeight>() : content_->coded;
  const auto tensors = tensor_list(config());
  for (std::size_t i = 0; i < list.size(); ++i) {
    list[i].rows = tensors[i].kept_rows(capacity);
    list[i].cols = tensors[i].kept_cols(capacity);
  }
  return list;
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
