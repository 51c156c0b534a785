#include "essh/decode/session.h"

#include <algorithm>
#include <charconv>

#include "essh/base/sha256.h"
#include "essh/base/utf8.h"

namespace essh {
namespace fs = std::filesystem;
namespace {

// Tokens taken in at once: enough for full matrix products, little enough for memory.
constexpr std::size_t kPiece = 512;
// Rows of logits held at once.
constexpr Index kLogitRows = 128;

std::string state_digest(std::span<const float> state, std::span<const float> logits) {
  Sha256 hash;
  hash.update(std::as_bytes(state));
  hash.update(std::as_bytes(logits));
  return hash.hex();
}

}  // namespace

Runner::Runner(LoadedModel model, std::string hash)
    : loaded_(std::move(model)), model_(loaded_.config), hash_(std::move(hash)) {}

Runner Runner::open(const fs::path& folder, NonFinite policy) {
  return Runner(load_model(folder, policy), model_hash(folder));
}

void Runner::check_tokens(std::span<const std::int32_t> tokens, std::string_view place) const {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= config().vocab_size) {
      fail(ErrorKind::Usage, "{}: token {} is {}, this model's vocabulary has ids 0 to {}", place, i, tokens[i],
           config().vocab_size - 1);
    }
  }
}

Session::Session(const Runner& runner, Tier tier, Stream& stream)
    : runner_(runner),
      tier_(std::move(tier)),
      stream_(stream),
      arena_(stream.device()),
      state_(static_cast<std::size_t>(runner.model().state_size(tier_.capacity))) {}

void Session::reset() {
  std::fill(state_.begin(), state_.end(), 0.0f);
  logits_.clear();
  position_ = 0;
}

void Session::feed(std::span<const std::int32_t> tokens) {
  runner_.check_tokens(tokens, "prompt");
  while (!tokens.empty()) {
    const auto piece = tokens.first(std::min(tokens.size(), kPiece));
    tokens = tokens.subspan(piece.size());
    extend(piece, tokens.empty());
  }
}

void Session::extend(std::span<const std::int32_t> tokens, bool last) {
  arena_.release();
  const Pass pass{.stream = stream_,
                  .arena = arena_,
                  .capacity = tier_.capacity,
                  .sequences = 1,
                  .length = static_cast<Index>(tokens.size())};
  const auto state = dense(state_.data(), 1, static_cast<Index>(state_.size()));
  const auto weights = runner_.weights();
  const auto hidden =
      runner_.model().extend(pass, weights, {tokens.data(), pass.length}, state, {{&position_, 1}, {&position_, 1}});
  position_ += pass.length;
  if (!last) return;
  logits_.resize(static_cast<std::size_t>(runner_.config().vocab_size));
  runner_.model().head(pass, weights, hidden.middle(pass.length - 1, 1),
                       dense(logits_.data(), 1, runner_.config().vocab_size));
}

std::span<const float> Session::logits() const {
  if (logits_.empty()) fail(ErrorKind::Usage, "there are no logits before the first token");
  return logits_;
}

void Session::save(const fs::path& path) const {
  const Metadata metadata = {{"essh", "state"},
                             {"model", runner_.hash()},
                             {"channels", std::to_string(tier_.capacity.channels)},
                             {"ffn", std::to_string(tier_.capacity.ffn)},
                             {"tier", tier_.name},
                             {"position", std::to_string(position_)},
                             {"sha256", state_digest(state_, logits_)}};
  SafetensorsWriter writer(path, {{"state", DType::F32, {state_.size()}}, {"logits", DType::F32, {logits_.size()}}},
                           metadata);
  for (const auto& info : writer.tensors())
    writer.write_as<float>(info, info.name == "state" ? std::span(state_) : std::span(logits_));
  writer.commit();
}

void Session::restore(const fs::path& path) {
  const auto file = SafetensorsFile::open(path);
  const auto& metadata = file.metadata();
  const auto value = [&](const char* key) {
    const auto found = metadata.find(key);
    return found == metadata.end() ? std::string() : found->second;
  };
  if (value("essh") != "state") fail(ErrorKind::BadFile, "{}: not a saved state", path.string());
  if (value("model") != runner_.hash())
    fail(ErrorKind::BadFile, "{}: saved by another model; feed the text to this one instead", path.string());
  if (value("channels") != std::to_string(tier_.capacity.channels) ||
      value("ffn") != std::to_string(tier_.capacity.ffn)) {
    fail(ErrorKind::BadFile, "{}: saved at tier {} ({}x{}), this session runs {} ({}x{})", path.string(),
         in_quotes(value("tier")), value("channels").substr(0, 12), value("ffn").substr(0, 12), tier_.name,
         tier_.capacity.channels, tier_.capacity.ffn);
  }
  const auto *state = file.find("state"), *logits = file.find("logits");
  const auto vocabulary = static_cast<std::uint64_t>(runner_.config().vocab_size);
  if (!state || !logits || state->dtype != DType::F32 || logits->dtype != DType::F32 ||
      state->elements() != state_.size() || (logits->elements() != vocabulary && logits->elements() != 0)) {
    fail(ErrorKind::BadFile, "{}: the state has not the size of this model", path.string());
  }
  std::vector<float> new_state(state_.size()), new_logits(logits->elements());
  file.read_as<float>(*state, new_state);
  file.read_as<float>(*logits, new_logits);
  if (state_digest(new_state, new_logits) != value("sha256"))
    fail(ErrorKind::BadFile, "{}: damaged, its checksum does not match", path.string());
  Index position = 0;
  const auto text = value("position");
  const auto [rest, status] = std::from_chars(text.data(), text.data() + text.size(), position);
  if (status != std::errc{} || rest != text.data() + text.size() || position < 0)
    fail(ErrorKind::BadFile, "{}: its position is not a number", path.string());
  state_ = std::move(new_state);
  logits_ = std::move(new_logits);
  position_ = position;
}

void all_logits(const Runner& runner, Capacity capacity, Stream& stream, std::span<const std::int32_t> tokens,
                LogitsPath path, const std::function<void(Index, Matrix<const float>)>& take) {
  runner.check_tokens(tokens, "tokens");
  const auto& model = runner.model();
  const auto weights = runner.weights();
  Arena arena(stream.device());
  std::vector<float> state(static_cast<std::size_t>(model.state_size(capacity)));
  const std::size_t piece = path == LogitsPath::Recurrent ? 1 : kPiece;
  for (std::size_t first = 0; first < tokens.size(); first += piece) {
    arena.release();
    const auto part = tokens.subspan(first, std::min(piece, tokens.size() - first));
    const auto position = static_cast<Index>(first);
    const Pass pass{.stream = stream,
                    .arena = arena,
                    .capacity = capacity,
                    .sequences = 1,
                    .length = static_cast<Index>(part.size())};
    const auto hidden =
        model.extend(pass, weights, {part.data(), pass.length},
                     dense(state.data(), 1, static_cast<Index>(state.size())), {{&position, 1}, {&position, 1}});
    for (Index row = 0; row < hidden.rows; row += kLogitRows) {
      const auto mark = arena.mark();
      const Index rows = std::min(kLogitRows, hidden.rows - row);
      const auto logits = arena.matrix<float>(rows, runner.config().vocab_size);
      model.head(pass, weights, hidden.middle(row, rows), logits);
      take(position + row, logits);
      arena.release(mark);
    }
  }
}

}  // namespace essh
