#include "essh/export/verify.h"

#include <algorithm>
#include <cstring>

#include "essh/base/rng.h"
#include "essh/model/cost.h"
#include "essh/model/model.h"
#include "essh/store/manifest.h"
#include "essh/store/model_folder.h"

namespace essh {
namespace fs = std::filesystem;
namespace {

constexpr Index kBatches = 2;
constexpr Index kSequences = 2;
constexpr Index kLength = 160;  // two whole chunks of the scan and a partial one

// The parent's values as this folder's dtype would store them.
void round_like(Parameters<float>& parameters, const TensorFiles& files) {
  const auto& tensors = parameters.layout().tensors();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto dtype = files.find(tensors[i].name)->info->dtype;
    if (dtype == DType::F32 || dtype == DType::F64) continue;
    const auto values = parameters.tensor(i);
    std::vector<std::byte> stored(values.size() * dtype_size(dtype));
    encode_elements<float>(dtype, values, stored);
    decode_elements<float>(dtype, stored, values);
  }
}

std::vector<float> batch_logits(const Model<float>& model, const Weights<float>& weights, Capacity capacity,
                                std::span<const std::int32_t> tokens, Stream& stream) {
  Arena arena(stream.device());
  const Pass pass{.stream = stream, .arena = arena, .capacity = capacity, .sequences = kSequences, .length = kLength};
  const auto hidden = model.forward(pass, weights, {tokens.data(), pass.tokens()}, nullptr);
  const Index vocabulary = model.config().vocab_size;
  std::vector<float> logits(static_cast<std::size_t>(hidden.rows * vocabulary));
  model.head(pass, weights, hidden, dense(logits.data(), hidden.rows, vocabulary));
  return logits;
}

void compare_with_parent(const LoadedModel& child, const fs::path& folder, const fs::path& parent_folder,
                         Stream& stream, Verification& result) {
  auto parent = load_model(parent_folder);
  const auto capacity = full_capacity(child.config), full = full_capacity(parent.config);
  if (capacity.channels > full.channels || capacity.ffn > full.ffn ||
      parent.config.hidden_size != child.config.hidden_size || parent.config.vocab_size != child.config.vocab_size ||
      parent.config.num_hidden_layers != child.config.num_hidden_layers) {
    result.checks.push_back(
        {"parent", false, fmt::format("{} is not a slice of {}", folder.string(), parent_folder.string())});
    return;
  }
  round_like(parent.parameters, TensorFiles::open(folder));
  const Model<float> child_model(child.config), parent_model(parent.config);
  Rng rng(2333);
  std::size_t different = 0, total = 0;
  for (Index batch = 0; batch < kBatches; ++batch) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(kSequences * kLength));
    for (auto& token : tokens)
      token = static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(child.config.vocab_size)));
    const auto ours = batch_logits(child_model, child.parameters.weights(), capacity, tokens, stream);
    const auto theirs = batch_logits(parent_model, parent.parameters.weights(), capacity, tokens, stream);
    for (std::size_t i = 0; i < ours.size(); ++i) different += std::memcmp(&ours[i], &theirs[i], sizeof(float)) != 0;
    total += ours.size();
  }
  result.checks.push_back(
      {"parent", different == 0,
       different == 0 ? fmt::format("{} logits equal bit by bit at {}x{}", total, capacity.channels, capacity.ffn)
                      : fmt::format("{} of {} logits differ from the parent at {}x{}", different, total,
                                    capacity.channels, capacity.ffn)});
}

}  // namespace

bool Verification::good() const {
  return std::all_of(checks.begin(), checks.end(), [](const Check& check) { return check.good; });
}

Verification verify_model(const fs::path& folder, const std::optional<fs::path>& parent, Stream& stream) {
  Verification result;
  // Runs one check; a thrown Error is its fault.
  const auto check = [&](const char* name, const auto& body) {
    try {
      result.checks.push_back({name, true, body()});
      return true;
    } catch (const Error& error) {
      result.checks.push_back({name, false, error.what()});
      return false;
    }
  };
  check("hashes", [&] {
    std::vector<std::string> required = {"config.json"};
    const auto problems = check_manifest(folder, required);
    problems.fail_if_any(folder.string());
    return std::string("every file matches SHA256SUMS");
  });
  std::optional<ModelConfig> config;
  if (!check("config", [&] {
        config = read_config(folder);
        return fmt::format("{} parameters", cost_of(*config, full_capacity(*config)).parameters);
      })) {
    return result;
  }
  if (!check("tensors", [&] {
        const auto files = TensorFiles::open(folder);
        check_tensors(*config, files).fail_if_any(folder.string());
        return fmt::format("{} tensors of the expected shapes in {} file(s)", files.tensors().size(),
                           files.files().size());
      })) {
    return result;
  }
  std::optional<LoadedModel> model;
  if (!check("values", [&] {
        model = load_model(folder);
        return std::string("all finite");
      })) {
    return result;
  }
  if (parent)
    check("parent files", [&] {
      compare_with_parent(*model, folder, *parent, stream, result);
      return parent->string();
    });
  return result;
}

}  // namespace essh
