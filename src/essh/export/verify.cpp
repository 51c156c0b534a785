#include "essh/export/verify.h"

#include <algorithm>
#include <cstring>

#include "essh/base/rng.h"
#include "essh/kernels/clear.h"
#include "essh/model/cost.h"
#include "essh/model/device_weights.h"
#include "essh/model/model.h"
#include "essh/store/manifest.h"
#include "essh/store/model_folder.h"

namespace essh {
namespace fs = std::filesystem;
namespace {

constexpr Index kBatches = 2;
constexpr Index kSequences = 2;
constexpr Index kLength = 160;  // two whole chunks of the scan and a partial one
constexpr Index kSteps = 4;     // token by token

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

// A model where a stream computes.
template <class T>
struct Placed {
  Model<T> model;
  DeviceWeights<T> weights;

  Placed(const LoadedModel& loaded, Stream& stream) : model(loaded.config), weights(loaded.parameters, stream) {}

  // Logits of all positions in one pass, then those of the first sequence's last tokens from the recurrent state.
  std::vector<float> logits(Capacity capacity, std::span<const std::int32_t> tokens, Stream& stream) const {
    const Index vocabulary = model.config().vocab_size;
    Arena arena(stream.device());
    std::vector<float> all;
    const auto add_head = [&](const Pass& pass, Matrix<const T> hidden) {
      const auto rows = arena.matrix<float>(hidden.rows, vocabulary);
      model.head(pass, weights.weights(), hidden, rows);
      const auto begin = all.size();
      all.resize(begin + static_cast<std::size_t>(rows.rows * vocabulary));
      download(stream, Vector<float>{rows.data, rows.rows * vocabulary}, std::span(all).subspan(begin));
    };
    const auto ids = arena.vector<std::int32_t>(kSequences * kLength);
    upload(stream, tokens, ids);
    const Pass whole{
        .stream = stream, .arena = arena, .capacity = capacity, .sequences = kSequences, .length = kLength};
    add_head(whole, model.forward(whole, weights.weights(), ids, nullptr));

    const auto state = arena.matrix<float>(1, model.state_size(capacity));
    const auto device_position = arena.vector<Index>(1);
    clear(stream, Vector<float>{state.data, state.cols});
    Index position = 0;
    const auto extend = [&](Index length) {
      const Pass pass{.stream = stream, .arena = arena, .capacity = capacity, .sequences = 1, .length = length};
      upload(stream, {&position, 1}, device_position);
      const auto hidden = model.extend(pass, weights.weights(), {ids.data + position, length}, state,
                                       {{&position, 1}, device_position});
      add_head(pass, hidden.middle(length - 1, 1));
      position += length;
    };
    extend(kLength - kSteps);
    for (Index step = 0; step < kSteps; ++step) extend(1);
    return all;
  }
};

template <class T>
void compare_logits(const LoadedModel& child, const LoadedModel& parent, Stream& stream, Verification& result) {
  const Placed<T> ours(child, stream), theirs(parent, stream);
  const auto capacity = full_capacity(child.config);
  Rng rng(2333);
  std::size_t different = 0, total = 0;
  for (Index batch = 0; batch < kBatches; ++batch) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(kSequences * kLength));
    for (auto& token : tokens)
      token = static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(child.config.vocab_size)));
    const auto a = ours.logits(capacity, tokens, stream), b = theirs.logits(capacity, tokens, stream);
    for (std::size_t i = 0; i < a.size(); ++i) different += std::memcmp(&a[i], &b[i], sizeof(float)) != 0;
    total += a.size();
  }
  const auto place = fmt::format("at {}x{} in {} on {}", capacity.channels, capacity.ffn,
                                 std::is_same_v<T, float> ? "float32" : "bf16", stream.description());
  result.checks.push_back({"parent", different == 0,
                           different == 0
                               ? fmt::format("{} logits equal bit by bit {}", total, place)
                               : fmt::format("{} of {} logits differ from the parent {}", different, total, place)});
}

void compare_with_parent(const LoadedModel& child, const fs::path& folder, const fs::path& parent_folder,
                         Stream& stream, Precision precision, Verification& result) {
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
  if (precision == Precision::BFloat16)
    compare_logits<BFloat16>(child, parent, stream, result);
  else
    compare_logits<float>(child, parent, stream, result);
}

}  // namespace

bool Verification::good() const {
  return std::all_of(checks.begin(), checks.end(), [](const Check& check) { return check.good; });
}

Verification verify_model(const fs::path& folder, const std::optional<fs::path>& parent, Stream& stream,
                          Precision precision) {
  precision = precision_on(stream.device(), precision);
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
      compare_with_parent(*model, folder, *parent, stream, precision, result);
      return parent->string();
    });
  return result;
}

}  // namespace essh
