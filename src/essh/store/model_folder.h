#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "essh/model/tensors.h"
#include "essh/store/dtype.h"
#include "essh/store/folder_writer.h"
#include "essh/store/problems.h"
#include "essh/store/quantisation.h"
#include "essh/store/tensor_files.h"

namespace essh {

ModelConfig read_config(const std::filesystem::path& folder);

// Compares a folder's tensors with its config: missing, extra and misshapen tensors, wrong dtypes.
Problems check_tensors(const ModelConfig& config, const TensorFiles& files);

enum class NonFinite { Refuse, Accept };

// A model folder read into memory. Tensors are converted to float. Non-finite values are an error unless accepted.
struct LoadedModel {
  ModelConfig config;
  Parameters<float> parameters;
};
LoadedModel load_model(const std::filesystem::path& folder, NonFinite policy = NonFinite::Refuse);

// Number of non-finite values of a tensor.
std::uint64_t count_non_finite(std::span<const float> values);

// "f32", "bf16" or "f16", also "float32", "bfloat16", "float16" as config.json spells them.
DType parse_dtype(std::string_view name);
std::string torch_name(DType dtype);
// The dtype of a tensor in a folder of this dtype: matrices take it, all other tensors are float32.
DType stored_dtype(const ModelTensor& tensor, DType dtype);

// How the matrices of a folder are stored: in a dtype, or quantised.
struct MatrixFormat {
  DType dtype = DType::F32;
  std::optional<Quantisation> quantisation = {};

  bool operator==(const MatrixFormat&) const = default;
};
// A dtype by one of its names, or "q8", "q4", "fp8".
MatrixFormat parse_matrix_format(std::string_view name);
std::string matrix_format_name(const MatrixFormat& format);
MatrixFormat matrix_format(const ModelConfig& config);
// The "quantization_config" of a folder of this format.
QuantizationConfig quantization_config(const MatrixFormat& format);

// A tensor of a folder in float, quantised or not.
void read_tensor(const ModelTensor& tensor, const TensorFiles& files, std::span<float> values);

struct SaveOptions {
  MatrixFormat format = {};
  std::string provenance = "{}";                   // the text of essh.json, an object; "companions" is added
  std::vector<std::filesystem::path> copied = {};  // further files (tokenizer), under their own names
  ExistingFolder existing = ExistingFolder::Refuse;
  std::uint64_t shard_bytes = TensorFilesWriter::kShardBytes;
  // At full capacity, whether a family keeps its slopes; without, it is a model of fixed capacity.
  bool slopes = true;
};

// Writes the slice of a family at a capacity as a standalone folder; at full capacity, the family itself.
void save_model(const std::filesystem::path& folder, const ModelConfig& config, const Parameters<float>& parameters,
                Capacity capacity, const SaveOptions& options);

// Identifies a model: SHA-256 over its config and tensor files.
std::string model_hash(const std::filesystem::path& folder);

// Files that every export copies (tokenizer and its settings).
std::vector<std::filesystem::path> companion_files(const std::filesystem::path& folder);

}  // namespace essh
