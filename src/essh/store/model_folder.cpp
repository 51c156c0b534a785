#include "essh/store/model_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "essh/base/json.h"
#include "essh/base/sha256.h"
#include "essh/base/utf8.h"
#include "essh/model/slice.h"
#include "essh/store/foreign_config.h"

namespace essh {
namespace fs = std::filesystem;
namespace {

constexpr std::uint64_t kSmallFile = 1u << 20;

std::string shape_text(const auto& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

bool same_shape(const std::vector<std::uint64_t>& stored, const std::vector<Index>& wanted) {
  return std::equal(stored.begin(), stored.end(), wanted.begin(), wanted.end(),
                    [](std::uint64_t a, Index b) { return a == static_cast<std::uint64_t>(b); });
}

std::vector<std::uint64_t> matrix_shape(Index rows, Index columns) {
  return {static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns)};
}

// Checks the codes and scales of a quantised matrix.
void check_quantised(const ModelTensor& tensor, Quantisation quantisation, const TensorInfo& codes,
                     const TensorFiles& files, Problems& problems) {
  const auto check_shape = [&](const TensorInfo& info, const std::vector<std::uint64_t>& wanted) {
    if (info.shape != wanted)
      problems.add(fmt::format("{} has shape {}, config.json asks for {}", info.name, shape_text(info.shape),
                               shape_text(wanted)));
  };
  check_shape(codes, matrix_shape(tensor.rows, code_bytes(quantisation, tensor.cols)));
  const auto* scales = files.find(scale_name(tensor.name));
  if (!scales) return problems.add(fmt::format("{} is missing", scale_name(tensor.name)));
  check_shape(*scales->info, matrix_shape(tensor.rows, scale_count(tensor.cols)));
  if (scales->info->dtype != DType::BF16)
    problems.add(
        fmt::format("{} is stored as {}, scales are BF16", scales->info->name, dtype_name(scales->info->dtype)));
}

// Whether a tensor holds the scales of a quantised one.
bool is_scale(const std::string& name, const std::vector<ModelTensor>& list, const TensorFiles& files) {
  return std::ranges::any_of(list, [&](const ModelTensor& tensor) {
    const auto* codes = tensor.is_matrix() && scale_name(tensor.name) == name ? files.find(tensor.name) : nullptr;
    return codes && quantisation_of(codes->info->dtype);
  });
}

}  // namespace

ModelConfig read_config(const fs::path& folder) {
  if (!fs::exists(folder)) fail(ErrorKind::BadFile, "{}: there is no such folder", folder.string());
  if (!fs::is_directory(folder))
    fail(ErrorKind::BadFile, "{}: not a model folder; `essh init` makes one", folder.string());
  const auto path = folder / "config.json";
  return parse_config(without_foreign_keys(read_json(path, {.bytes = kSmallFile}), path.string()), path.string());
}

Problems check_tensors(const ModelConfig& config, const TensorFiles& files) {
  Problems problems;
  std::map<std::string, const ModelTensor*> wanted;
  const auto list = tensor_list(config);
  for (const auto& tensor : list) wanted[tensor.name] = &tensor;
  for (const auto& located : files.tensors()) {
    const auto found = wanted.find(located.info->name);
    if (found == wanted.end()) {
      if (is_scale(located.info->name, list, files)) continue;
      problems.add(fmt::format("{} is not part of this model", in_quotes(located.info->name)));
      continue;
    }
    const auto& tensor = *found->second;
    if (const auto quantisation = quantisation_of(located.info->dtype); quantisation && tensor.is_matrix()) {
      check_quantised(tensor, *quantisation, *located.info, files, problems);
      wanted.erase(found);
      continue;
    }
    const auto shape = tensor.shape();
    if (!same_shape(located.info->shape, shape)) {
      problems.add(fmt::format("{} has shape {}, config.json asks for {}", located.info->name,
                               shape_text(located.info->shape), shape_text(shape)));
    }
    if (!is_convertible(located.info->dtype)) {
      problems.add(fmt::format("{} is stored as {}; F32, BF16, F16 and F64 can be read", located.info->name,
                               dtype_name(located.info->dtype)));
    }
    wanted.erase(found);
  }
  for (const auto& [name, tensor] : wanted) problems.add(fmt::format("{} is missing", name));
  return problems;
}

std::uint64_t count_non_finite(std::span<const float> values) {
  return static_cast<std::uint64_t>(
      std::count_if(values.begin(), values.end(), [](float x) { return !std::isfinite(x); }));
}

void read_tensor(const ModelTensor& tensor, const TensorFiles& files, std::span<float> values) {
  const auto& located = *files.find(tensor.name);
  const auto quantisation = tensor.is_matrix() ? quantisation_of(located.info->dtype) : std::nullopt;
  if (!quantisation) return files.read_as<float>(located, values);
  const auto& scales = *files.find(scale_name(tensor.name));
  std::vector<std::byte> codes(located.info->bytes());
  std::vector<BFloat16> factors(scales.info->elements());
  located.file->read(*located.info, codes);
  scales.file->read(*scales.info, std::as_writable_bytes(std::span(factors)));
  const auto row_codes = static_cast<std::size_t>(code_bytes(*quantisation, tensor.cols)),
             row_scales = static_cast<std::size_t>(scale_count(tensor.cols)),
             columns = static_cast<std::size_t>(tensor.cols);
  for (std::size_t r = 0; r < static_cast<std::size_t>(tensor.rows); ++r)
    dequantise_row(*quantisation, std::span(codes).subspan(r * row_codes, row_codes),
                   std::span(factors).subspan(r * row_scales, row_scales), values.subspan(r * columns, columns));
}

LoadedModel load_model(const fs::path& folder, NonFinite policy) {
  const auto config = read_config(folder);
  const auto files = TensorFiles::open(folder);
  check_tensors(config, files).fail_if_any(folder.string());
  LoadedModel model{config, Parameters<float>(config)};
  Problems problems;
  const auto& tensors = model.parameters.layout().tensors();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto values = model.parameters.tensor(i);
    read_tensor(tensors[i], files, values);
    const auto bad = policy == NonFinite::Refuse ? count_non_finite(values) : 0;
    if (bad > 0) problems.add(fmt::format("{} has {} values that are not finite", tensors[i].name, bad));
  }
  problems.fail_if_any(folder.string());
  return model;
}

DType parse_dtype(std::string_view name) {
  if (name == "f32" || name == "float32") return DType::F32;
  if (name == "bf16" || name == "bfloat16") return DType::BF16;
  if (name == "f16" || name == "float16") return DType::F16;
  fail(ErrorKind::Usage, "dtype \"{}\" is not one of f32, bf16, f16", name.substr(0, 20));
}

std::string torch_name(DType dtype) {
  return dtype == DType::BF16 ? "bfloat16" : dtype == DType::F16 ? "float16" : "float32";
}

MatrixFormat parse_matrix_format(std::string_view name) {
  if (const auto quantisation = quantisation_from_name(name)) return {DType::F32, quantisation};
  try {
    return {parse_dtype(name), {}};
  } catch (const Error&) {
    fail(ErrorKind::Usage, "dtype \"{}\" is not one of f32, bf16, f16, fp8, q8, q4", name.substr(0, 20));
  }
}

std::string matrix_format_name(const MatrixFormat& format) {
  return format.quantisation ? std::string(quantisation_name(*format.quantisation)) : torch_name(format.dtype);
}

MatrixFormat matrix_format(const ModelConfig& config) {
  return {parse_dtype(config.torch_dtype), quantisation_from_name(config.quantization.format)};
}

QuantizationConfig quantization_config(const MatrixFormat& format) {
  if (!format.quantisation) return {};
  return {.quant_method = "essh",
          .format = std::string(quantisation_name(*format.quantisation)),
          .group_size = kQuantisationGroup};
}

DType stored_dtype(const ModelTensor& tensor, DType dtype) {
  return tensor.is_matrix() ? dtype : DType::F32;
}

void save_model(const fs::path& folder, const ModelConfig& config, const Parameters<float>& parameters,
                Capacity capacity, const SaveOptions& options) {
  FolderWriter writer(folder, options.existing);
  const bool whole = capacity == full_capacity(config) && (options.slopes || !config.elastic.slopes);
  auto sliced = whole ? config : slice(config, capacity);
  if (!whole) sliced.elastic = {};
  sliced.torch_dtype = torch_name(options.format.dtype);
  const auto quantisation = options.format.quantisation;
  sliced.quantization = quantization_config(options.format);
  const auto weights = whole ? parameters.weights() : slice(config, parameters.weights(), capacity);

  std::map<std::string, std::size_t> index_of;
  std::vector<TensorSpec> specs;
  const auto tensors = tensor_list(sliced);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (const auto own = quantisation ? tensor_quantisation(tensors[i], *quantisation) : std::nullopt) {
      const auto& [rows, cols] = std::pair(tensors[i].rows, tensors[i].cols);
      specs.push_back({tensors[i].name, code_dtype(*own), matrix_shape(rows, code_bytes(*own, cols))});
      specs.push_back({scale_name(tensors[i].name), DType::BF16, matrix_shape(rows, scale_count(cols))});
      index_of[tensors[i].name] = index_of[specs.back().name] = i;
      continue;
    }
    TensorSpec spec{.name = tensors[i].name, .dtype = stored_dtype(tensors[i], options.format.dtype), .shape = {}};
    for (const Index size : tensors[i].shape()) spec.shape.push_back(static_cast<std::uint64_t>(size));
    index_of[spec.name] = i;
    specs.push_back(std::move(spec));
  }
  TensorFilesWriter files(writer.folder(), specs, {}, options.shard_bytes);
  for (const auto& info : files.tensors()) {
    const auto index = index_of.at(info.name);
    const auto values = weights.table<float>(index);
    if (const auto own = quantisation ? tensor_quantisation(tensors[index], *quantisation) : std::nullopt) {
      std::vector<std::byte> codes(static_cast<std::size_t>(code_bytes(*own, values.cols)));
      std::vector<BFloat16> scales(static_cast<std::size_t>(scale_count(values.cols)));
      for (Index r = 0; r < values.rows; ++r) {
        quantise_row(*own, std::span(values.row(r), static_cast<std::size_t>(values.cols)), codes, scales);
        files.write(info, info.name == tensors[index].name ? std::span<const std::byte>(codes)
                                                           : std::as_bytes(std::span(scales)));
      }
      continue;
    }
    const auto write = [&](Index row, Index count) {
      files.write_as<float>(info, std::span(values.row(row), static_cast<std::size_t>(count)));
    };
    if (values.cols == values.stride) {
      write(0, values.rows * values.cols);
    } else {
      for (Index r = 0; r < values.rows; ++r) write(r, values.cols);
    }
  }
  files.commit();

  write_durably(writer.folder() / "config.json", to_text(config_json(sliced), 2) + "\n");
  const Json generation = {{"bos_token_id", sliced.bos_token_id}, {"eos_token_id", sliced.eos_token_id}};
  write_durably(writer.folder() / "generation_config.json", to_text(generation, 2) + "\n");
  auto provenance = parse_json(options.provenance, "essh.json");
  auto& companions = provenance["companions"] = Json::array();
  for (const auto& file : options.copied) companions.push_back(file.filename().string());
  write_durably(writer.folder() / "essh.json", to_text(provenance, 2) + "\n");
  for (const auto& file : options.copied)
    write_durably(writer.folder() / file.filename(), read_text(file, std::uint64_t{1} << 30));
  writer.commit();
}

std::string model_hash(const fs::path& folder) {
  std::vector<fs::path> files = {folder / "config.json"};
  const auto tensors = TensorFiles::open(folder);
  for (const auto& file : tensors.files()) files.emplace_back(file.place());
  std::sort(files.begin(), files.end());
  std::string lines;
  for (const auto& file : files) lines += sha256_of_file(file) + "  " + file.filename().string() + "\n";
  return sha256_of_text(lines);
}

std::vector<fs::path> companion_files(const fs::path& folder) {
  static constexpr std::array kNames = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"};
  std::vector<fs::path> found;
  for (const char* name : kNames) {
    if (fs::is_regular_file(folder / name)) found.push_back(folder / name);
  }
  return found;
}

}  // namespace essh
