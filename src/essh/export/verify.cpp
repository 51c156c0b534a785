#include "essh/export/verify.h"

#include <algorithm>
#include <cstring>

#include "essh/base/json.h"
#include "essh/base/rng.h"
#include "essh/base/sha256.h"
#include "essh/base/utf8.h"
#include "essh/decode/engine.h"
#include "essh/model/cost.h"
#include "essh/model/slice.h"
#include "essh/store/manifest.h"
#include "essh/text/tokenizer.h"

namespace essh {
namespace fs = std::filesystem;
namespace {

// Elements of logits held at once.
constexpr std::size_t kLogits = std::size_t{16} << 20;
// Recurrent check: the last tokens of a prompt of two whole chunks of the scan and a partial one.
constexpr std::size_t kPrompt = 160, kSteps = 4;

// Quantises the slice of a parent's matrix as an export does. The codes and scales must equal those of the folder.
void quantise_like(Matrix<float> parent, Quantisation quantisation, const ModelTensor& child,
                   const TensorFiles& files) {
  const auto& codes = *files.find(child.name);
  const auto& scales = *files.find(scale_name(child.name));
  std::vector<std::byte> stored_codes(codes.info->bytes()), stored_scales(scales.info->bytes());
  codes.file->read(*codes.info, stored_codes);
  scales.file->read(*scales.info, stored_scales);
  std::vector<std::byte> row_codes(static_cast<std::size_t>(code_bytes(quantisation, child.cols)));
  std::vector<BFloat16> row_scales(static_cast<std::size_t>(scale_count(child.cols)));
  for (Index r = 0; r < child.rows; ++r) {
    const std::span row(parent.row(r), static_cast<std::size_t>(child.cols));
    quantise_row(quantisation, row, row_codes, row_scales);
    const auto factors = std::as_bytes(std::span(row_scales));
    const auto at = static_cast<std::size_t>(r);
    if (!std::ranges::equal(row_codes, std::span(stored_codes).subspan(at * row_codes.size(), row_codes.size())) ||
        !std::ranges::equal(factors, std::span(stored_scales).subspan(at * factors.size(), factors.size())))
      fail(ErrorKind::BadFile, "{}: row {} is not the parent's in {}", child.name, r, quantisation_name(quantisation));
    dequantise_row(quantisation, row_codes, row_scales, row);
  }
}

// Rounds the parent's values to the types of this folder. Returns whether any value changed.
bool round_like(Parameters<float>& parameters, const ModelConfig& child, const TensorFiles& files) {
  bool changed = false;
  const auto& tensors = parameters.layout().tensors();
  const auto own = tensor_list(child);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto dtype = files.find(tensors[i].name)->info->dtype;
    if (dtype == DType::F32 || dtype == DType::F64) continue;
    const auto values = parameters.tensor(i);
    const std::vector<float> exact(values.begin(), values.end());
    if (const auto quantisation = quantisation_of(dtype)) {
      quantise_like(dense(values.data(), tensors[i].rows, tensors[i].cols), *quantisation, own[i], files);
    } else {
      std::vector<std::byte> stored(values.size() * dtype_size(dtype));
      encode_elements<float>(dtype, values, stored);
      decode_elements<float>(dtype, stored, values);
    }
    changed = changed || !std::equal(exact.begin(), exact.end(), values.begin());
  }
  return changed;
}

std::vector<std::pair<std::string, std::vector<Index>>> shapes_of(const ModelConfig& config) {
  std::vector<std::pair<std::string, std::vector<Index>>> shapes;
  for (const auto& tensor : tensor_list(config)) shapes.emplace_back(tensor.name, tensor.shape());
  return shapes;
}

struct Comparison {
  std::size_t different = 0, total = 0;

  void add(const Outputs& a, const Outputs& b) {
    for (std::size_t e = 0; e < a.entries.size(); ++e) {
      const auto &x = a.entries[e].logits, &y = b.entries[e].logits;
      ESSH_ASSERT(x.rows == y.rows && x.cols == y.cols);
      for (Index i = 0; i < x.rows * x.cols; ++i) different += std::memcmp(x.data + i, y.data + i, sizeof(float)) != 0;
      total += static_cast<std::size_t>(x.rows * x.cols);
    }
  }
};

// One model reading the sequences of a batch.
class Reader {
 public:
  Reader(Engine& engine, const Tier& tier) : engine_(engine) {
    for (Index s = 0; s < VerifyInput::kSequences; ++s) slots_.push_back(engine.open(tier));
  }
  ~Reader() {
    for (const auto slot : slots_) engine_.close(slot);
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  // Logits of tokens [first, first + count) of every sequence.
  const Outputs& parallel(std::span<const std::int32_t> batch, std::size_t first, std::size_t count) {
    const auto length = batch.size() / slots_.size();
    std::vector<Chunk> chunks;
    for (std::size_t s = 0; s < slots_.size(); ++s)
      chunks.push_back({.slot = slots_[s], .tokens = batch.subspan(s * length + first, count), .wanted = Wanted::All});
    engine_.run(chunks, outputs_);
    return outputs_;
  }
  const Outputs& next(std::span<const std::int32_t> tokens) {
    const Chunk chunk{.slot = slots_[0], .tokens = tokens};
    engine_.run({&chunk, 1}, outputs_);
    return outputs_;
  }
  void reset() {
    for (const auto slot : slots_) engine_.reset(slot);
  }

 private:
  Engine& engine_;
  std::vector<Slot> slots_;
  Outputs outputs_;
};

void compare_batch(Reader& ours, Reader& theirs, std::span<const std::int32_t> batch, std::size_t vocabulary,
                   Comparison& result) {
  const auto length = batch.size() / VerifyInput::kSequences;
  // In whole chunks of the scan.
  const auto piece = std::max<std::size_t>(64, kLogits / vocabulary / VerifyInput::kSequences / 64 * 64);
  ours.reset();
  theirs.reset();
  for (std::size_t first = 0; first < length; first += piece) {
    const auto count = std::min(piece, length - first);
    result.add(ours.parallel(batch, first, count), theirs.parallel(batch, first, count));
  }
  ours.reset();
  theirs.reset();
  const auto prompt = std::min(length, kPrompt), steps = std::min(kSteps, prompt - 1);
  for (std::size_t begin = 0; begin < prompt;) {
    const auto tokens = batch.subspan(begin, begin == 0 ? prompt - steps : 1);
    result.add(ours.next(tokens), theirs.next(tokens));
    begin += tokens.size();
  }
}

std::vector<std::int32_t> tokens_of(const VerifyInput& input, Index vocabulary) {
  if (!input.tokens.empty()) {
    ESSH_ASSERT(static_cast<Index>(input.tokens.size()) == input.needed());
    return input.tokens;
  }
  Rng rng(2333);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(input.needed()));
  for (auto& token : tokens) token = static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(vocabulary)));
  return tokens;
}

void compare_with_parent(const StoredModel& child, const fs::path& folder, const fs::path& parent_folder,
                         Stream& stream, Precision precision, const VerifyInput& input, Verification& result) {
  auto loaded = load_model(parent_folder);
  const auto capacity = full_capacity(child.config()), full = full_capacity(loaded.config);
  const bool inside = capacity.channels <= full.channels && capacity.ffn <= full.ffn;
  const bool whole = capacity == full && child.config().elastic.slopes;
  const auto sliced = inside && !whole ? slice(loaded.config, capacity) : loaded.config;
  if (!inside || shapes_of(sliced) != shapes_of(child.config())) {
    result.checks.push_back(
        {"parent", false, fmt::format("{} is not a slice of {}", folder.string(), parent_folder.string())});
    return;
  }
  if (loaded.config.elastic.slopes && !whole) {
    // An export makes the sums with slopes before it rounds them.
    loaded.parameters = slice(loaded.config, loaded.parameters, capacity);
    loaded.config = sliced;
  }
  const bool rounded = round_like(loaded.parameters, child.config(), TensorFiles::open(folder));
  const Tier tier{"full", 1, capacity};
  const EngineOptions options{.precision = precision};
  Engine ours(child, stream, options), theirs(StoredModel(std::move(loaded)), stream, options);
  const auto tokens = tokens_of(input, child.config().vocab_size);
  child.check_tokens(tokens, input.name);
  Comparison compared;
  {
    Reader a(ours, tier), b(theirs, tier);
    const auto batch = tokens.size() / VerifyInput::kBatches;
    for (std::size_t first = 0; first < tokens.size(); first += batch)
      compare_batch(a, b, std::span(tokens).subspan(first, batch), static_cast<std::size_t>(child.config().vocab_size),
                    compared);
  }
  const auto [different, total] = compared;
  const auto place = fmt::format("at {} in {} on {}, {} x {} x {} of {}", sizes_of(child.config(), capacity),
                                 precision == Precision::BFloat16 ? "bf16" : "float32", stream.description(),
                                 VerifyInput::kBatches, VerifyInput::kSequences, input.length, input.name);
  const auto how =
      rounded ? fmt::format(", the parent rounded to {} first", matrix_format_name(matrix_format(child.config()))) : "";
  result.checks.push_back(
      {"parent", different == 0,
       different == 0 ? fmt::format("{} logits equal bit by bit {}{}", total, place, how)
                      : fmt::format("{} of {} logits differ from the parent {}{}", different, total, place, how)});
}

constexpr const char* kTokenizer = "tokenizer.json";

// Whether the folder was written with a tokenizer, or its parent has one.
bool needs_tokenizer(const fs::path& folder, const std::optional<fs::path>& parent) {
  if (parent && fs::exists(*parent / kTokenizer)) return true;
  if (!fs::exists(folder / "essh.json")) return false;
  try {
    const auto provenance = read_json(folder / "essh.json", {.bytes = 8u << 20});
    const auto companions = provenance.is_object() ? provenance.find("companions") : provenance.end();
    return companions != provenance.end() &&
           std::find(companions->begin(), companions->end(), kTokenizer) != companions->end();
  } catch (const Error&) {
    return false;  // reported by the check of hashes
  }
}

std::string check_tokenizer(const fs::path& folder, const std::optional<fs::path>& parent, const ModelConfig& config) {
  const auto path = folder / kTokenizer;
  if (!fs::exists(path)) fail(ErrorKind::BadFile, "{}: is missing; copy it from the parent", path.string());
  const auto tokenizer = load_tokenizer(folder);
  if (tokenizer->vocab_size() > config.vocab_size) {
    fail(ErrorKind::BadFile, "{}: {} entries, config.json has a vocabulary of {}", path.string(),
         tokenizer->vocab_size(), config.vocab_size);
  }
  if (parent && fs::exists(*parent / kTokenizer) && sha256_of_file(path) != sha256_of_file(*parent / kTokenizer))
    fail(ErrorKind::BadFile, "{}: not the tokenizer of {}", path.string(), parent->string());
  return fmt::format("{} entries", tokenizer->vocab_size());
}

}  // namespace

bool Verification::good() const {
  return std::all_of(checks.begin(), checks.end(), [](const Check& check) { return check.good; });
}

Verification verify_model(const fs::path& folder, const std::optional<fs::path>& parent, Stream& stream,
                          Precision precision, const VerifyInput& input) {
  precision = precision_on(stream.device(), precision);
  Verification result;
  // Runs one check; an Error it throws is a fault.
  const auto check = [&](const char* name, const auto& body) {
    try {
      result.checks.push_back({name, true, body()});
      return true;
    } catch (const Error& error) {
      result.checks.push_back({name, false, error.what()});
      return false;
    }
  };
  if (!fs::is_directory(folder)) {
    check("folder", [&]() -> std::string { fail(ErrorKind::BadFile, "there is no such folder"); });
    return result;
  }
  check("hashes", [&] {
    std::vector<std::string> required = {"config.json"};
    auto problems = check_manifest(folder, required);
    for (const auto& name : unlisted_files(folder)) {
      // Hidden files belong to other tools, such as git.
      if (!name.starts_with('.')) problems.add(fmt::format("{} is not listed in {}", in_quotes(name), kManifestName));
    }
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
  if (fs::exists(folder / kTokenizer) || needs_tokenizer(folder, parent))
    check("tokenizer", [&] { return check_tokenizer(folder, parent, *config); });
  if (!check("tensors", [&] {
        const auto files = TensorFiles::open(folder);
        check_tensors(*config, files).fail_if_any(folder.string());
        return fmt::format("{} tensors of the expected shapes in {} file(s)", files.tensors().size(),
                           files.files().size());
      })) {
    return result;
  }
  std::optional<StoredModel> model;
  if (!check("values", [&] {
        model = StoredModel::open(folder);
        return std::string("all finite");
      })) {
    return result;
  }
  if (parent)
    check("parent files", [&] {
      compare_with_parent(*model, folder, *parent, stream, precision, input, result);
      return parent->string();
    });
  return result;
}

}  // namespace essh
