#include "essh/decode/session.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "essh/base/sha256.h"
#include "essh/base/utf8.h"

namespace essh {
namespace fs = std::filesystem;
namespace {

// Logits held at once by all_logits, in elements.
constexpr Index kLogits = Index{16} << 20;

std::string state_digest(const StateSnapshot& snapshot, std::span<const float> logits, const SamplerState& sampler) {
  Sha256 hash;
  for (const auto& part : snapshot.parts) hash.update(part);
  hash.update(std::as_bytes(logits));
  hash.update(std::as_bytes(std::span(sampler.recent)));
  const std::array<std::uint64_t, 3> numbers = {sampler.seed, sampler.position,
                                                static_cast<std::uint64_t>(snapshot.position)};
  hash.update(std::as_bytes(std::span(numbers)));
  return hash.hex();
}

std::string part_name(std::size_t part) {
  return fmt::format("part.{}", part);
}

template <class Number>
Number parse_number(const std::string& text, const char* name, const fs::path& path) {
  Number number{};
  const auto [rest, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (status != std::errc{} || rest != text.data() + text.size() || number < Number{})
    fail(ErrorKind::BadFile, "{}: its {} is not a number", path.string(), name);
  return number;
}

}  // namespace

Session::Session(Engine& engine, const Tier& tier, SlotOptions options)
    : engine_(engine), tier_(tier), options_(options), slot_(engine.open(tier, options)) {}

Session::~Session() {
  engine_.close(slot_);
}

void Session::reset() {
  engine_.reset(slot_);
  outputs_.entries.clear();
  restored_.clear();
}

void Session::feed(std::span<const std::int32_t> tokens) {
  if (tokens.empty()) return;
  engine_.model().check_tokens(tokens, "prompt");
  const Chunk chunk{.slot = slot_, .tokens = tokens};
  engine_.run({&chunk, 1}, outputs_);
  rows_ = 1;
}

void Session::feed_each(std::span<const std::int32_t> tokens) {
  const Chunk chunk{.slot = slot_, .tokens = tokens, .wanted = Wanted::All, .keeps_states = true};
  engine_.run({&chunk, 1}, outputs_);
  rows_ = std::ssize(tokens);
}

std::span<const float> Session::logits_after(Index token) const {
  ESSH_ASSERT(token >= 0 && token < rows_);
  const auto logits = outputs_.entries[0].logits;
  return {logits.row(token), static_cast<std::size_t>(logits.cols)};
}

void Session::take_back(Index tokens) {
  ESSH_ASSERT(tokens >= 0 && tokens < rows_);
  engine_.rewind(slot_, tokens);
  rows_ -= tokens;
}

std::span<const float> Session::logits() const {
  if (!outputs_.entries.empty()) return logits_after(rows_ - 1);
  if (restored_.empty()) fail(ErrorKind::Usage, "there are no logits before the first token");
  return restored_;
}

void Session::save(const fs::path& path, const SamplerState& sampler) const {
  const auto state = snapshot();
  const auto last = outputs_.entries.empty() && restored_.empty() ? std::span<const float>() : logits();
  const Metadata metadata = {{"essh", "state 3"},
                             {"model", engine_.model().hash()},
                             {"capacity", sizes_of(engine_.config(), tier_.capacity)},
                             {"caches", traits(state.rows).name},
                             {"tier", tier_.name},
                             {"position", std::to_string(state.position)},
                             {"seed", std::to_string(sampler.seed)},
                             {"draws", std::to_string(sampler.position)},
                             {"sha256", state_digest(state, last, sampler)}};
  std::vector<TensorSpec> specs = {{"logits", DType::F32, {last.size()}},
                                   {"recent", DType::I32, {sampler.recent.size()}}};
  for (std::size_t i = 0; i < state.parts.size(); ++i)
    specs.push_back({part_name(i), DType::U8, {state.parts[i].size()}});
  SafetensorsWriter writer(path, specs, metadata);
  for (const auto& info : writer.tensors()) {
    if (info.name == "logits") {
      writer.write_as<float>(info, last);
      continue;
    }
    if (info.name == "recent") {
      writer.write(info, std::as_bytes(std::span(sampler.recent)));
      continue;
    }
    for (std::size_t i = 0; i < state.parts.size(); ++i) {
      if (info.name == part_name(i)) writer.write(info, state.parts[i]);
    }
  }
  writer.commit();
}

SamplerState Session::restore(const fs::path& path) {
  const auto file = SafetensorsFile::open(path);
  const auto value = [&](const char* key) {
    const auto found = file.metadata().find(key);
    return found == file.metadata().end() ? std::string() : found->second;
  };
  if (value("essh") == "state" || value("essh") == "state 2")
    fail(ErrorKind::BadFile, "{}: saved by an older version; feed the text to the model instead", path.string());
  if (value("essh") != "state 3") fail(ErrorKind::BadFile, "{}: not a saved state", path.string());
  if (value("model") != engine_.model().hash())
    fail(ErrorKind::BadFile, "{}: saved by another model; feed the text to this one instead", path.string());
  const auto sizes = sizes_of(engine_.config(), tier_.capacity);
  if (value("capacity") != sizes) {
    fail(ErrorKind::BadFile, "{}: saved at tier {} ({}), this session runs {} ({})", path.string(),
         in_quotes(value("tier")), in_quotes(value("capacity")), tier_.name, sizes);
  }
  StateSnapshot state{.capacity = tier_.capacity, .position = parse_number<Index>(value("position"), "position", path)};
  for (const auto format : {Format::F32, Format::BF16}) {
    if (value("caches") == traits(format).name) state.rows = format;
  }
  const auto* logits = file.find("logits");
  const auto vocabulary = static_cast<std::uint64_t>(engine_.config().vocab_size);
  if (!logits || logits->dtype != DType::F32 || (logits->elements() != vocabulary && logits->elements() != 0))
    fail(ErrorKind::BadFile, "{}: the state has not the size of this model", path.string());
  std::vector<float> last(logits->elements());
  file.read_as<float>(*logits, last);
  SamplerState sampler{.seed = parse_number<std::uint64_t>(value("seed"), "seed", path),
                       .position = parse_number<std::uint64_t>(value("draws"), "number of draws", path)};
  const auto* recent = file.find("recent");
  if (!recent || recent->dtype != DType::I32)
    fail(ErrorKind::BadFile, "{}: the recent tokens are missing", path.string());
  sampler.recent.resize(recent->elements());
  file.read(*recent, std::as_writable_bytes(std::span(sampler.recent)));
  for (std::size_t i = 0; i + 2 < file.tensors().size(); ++i) {
    const auto* info = file.find(part_name(i));
    if (!info) fail(ErrorKind::BadFile, "{}: the state has not the parts of this model", path.string());
    auto& part = state.parts.emplace_back(info->bytes());
    file.read(*info, part);
  }
  if (state_digest(state, last, sampler) != value("sha256"))
    fail(ErrorKind::BadFile, "{}: damaged, its checksum does not match", path.string());
  Slot slot;
  try {
    slot = engine_.restore(tier_, state, options_);
  } catch (const Error& error) {
    fail(ErrorKind::BadFile, "{}: {}", path.string(), error.what());
  }
  engine_.close(slot_);
  slot_ = slot;
  outputs_.entries.clear();
  restored_ = std::move(last);
  return sampler;
}

void all_logits(Engine& engine, const Tier& tier, std::span<const std::int32_t> tokens, LogitsPath path,
                const std::function<void(Index, Matrix<const float>)>& take) {
  engine.model().check_tokens(tokens, "tokens");
  // Whole chunks of the scan.
  const auto piece =
      path == LogitsPath::Recurrent
          ? std::size_t{1}
          : static_cast<std::size_t>(std::clamp<Index>(kLogits / engine.config().vocab_size / 64 * 64, 64, 512));
  const auto slot = engine.open(tier);
  Outputs outputs;
  for (std::size_t first = 0; first < tokens.size(); first += piece) {
    const Chunk chunk{.slot = slot,
                      .tokens = tokens.subspan(first, std::min(piece, tokens.size() - first)),
                      .wanted = path == LogitsPath::Recurrent ? Wanted::Last : Wanted::All};
    engine.run({&chunk, 1}, outputs);
    take(static_cast<Index>(first), outputs.entries[0].logits);
  }
  engine.close(slot);
}

}  // namespace essh
