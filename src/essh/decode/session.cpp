#include "essh/decode/session.h"

#include <algorithm>
#include <charconv>

#include "essh/base/sha256.h"
#include "essh/base/utf8.h"
#include "essh/kernels/copy.h"

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

Session::Session(const Runner& runner, Tier tier, Stream& stream)
    : runner_(runner),
      tier_(std::move(tier)),
      stream_(stream),
      arena_(stream.device()),
      state_(stream.device(), runner.state_size(stream, tier_.capacity), "the state of a sequence"),
      token_(stream.device(), 1, "a token"),
      device_position_(stream.device(), 1, "a position"),
      device_logits_(stream.device(), runner.config().vocab_size, "logits") {
  reset();
}

void Session::reset() {
  launch(stream_, Fill<float>{.x = dense(state_.data(), 1, state_.size()), .value = 0});
  logits_.clear();
  position_ = 0;
}

void Session::feed(std::span<const std::int32_t> tokens) {
  runner_.check_tokens(tokens, "prompt");
  while (!tokens.empty()) {
    const auto piece = tokens.first(std::min(tokens.size(), kPiece));
    tokens = tokens.subspan(piece.size());
    if (piece.size() == 1 && tokens.empty())
      step(piece[0]);
    else
      extend(piece, tokens.empty());
  }
}

void Session::extend(std::span<const std::int32_t> tokens, bool last) {
  const auto length = static_cast<Index>(tokens.size());
  arena_.release();
  const Pass pass{.stream = stream_, .arena = arena_, .capacity = tier_.capacity, .sequences = 1, .length = length};
  const auto ids = arena_.vector<std::int32_t>(length);
  upload(stream_, tokens, ids);
  upload(stream_, {&position_, 1}, device_position_.view());
  runner_.with(stream_, [&](const auto& model, const auto& weights) {
    const auto hidden = model.extend(pass, weights, ids, dense(state_.data(), 1, state_.size()),
                                     {{&position_, 1}, device_position_.view()});
    if (last) {
      model.head(pass, weights, hidden.middle(length - 1, 1), dense(device_logits_.data(), 1, device_logits_.size()));
    }
  });
  position_ += length;
  if (last) fetch_logits();
}

void Session::step(std::int32_t token) {
  upload(stream_, {&token, 1}, token_.view());
  upload(stream_, {&position_, 1}, device_position_.view());
  step_.run(stream_, [&] {
    arena_.release();
    const Pass pass{.stream = stream_, .arena = arena_, .capacity = tier_.capacity, .sequences = 1, .length = 1};
    runner_.with(stream_, [&](const auto& model, const auto& weights) {
      const auto hidden = model.extend(pass, weights, token_.view(), dense(state_.data(), 1, state_.size()),
                                       {{&position_, 1}, device_position_.view()});
      model.head(pass, weights, hidden, dense(device_logits_.data(), 1, device_logits_.size()));
    });
  });
  ++position_;
  fetch_logits();
}

void Session::fetch_logits() {
  logits_.resize(static_cast<std::size_t>(device_logits_.size()));
  download(stream_, device_logits_.view(), logits_);
}

std::span<const float> Session::logits() const {
  if (logits_.empty()) fail(ErrorKind::Usage, "there are no logits before the first token");
  return logits_;
}

std::vector<float> Session::state() const {
  std::vector<float> copy(static_cast<std::size_t>(state_.size()));
  download(stream_, state_.view(), copy);
  return copy;
}

void Session::save(const fs::path& path) const {
  const auto state = this->state();
  const Metadata metadata = {{"essh", "state"},
                             {"model", runner_.hash()},
                             {"channels", std::to_string(tier_.capacity.channels)},
                             {"ffn", std::to_string(tier_.capacity.ffn)},
                             {"tier", tier_.name},
                             {"position", std::to_string(position_)},
                             {"sha256", state_digest(state, logits_)}};
  SafetensorsWriter writer(path, {{"state", DType::F32, {state.size()}}, {"logits", DType::F32, {logits_.size()}}},
                           metadata);
  for (const auto& info : writer.tensors())
    writer.write_as<float>(info,
                           info.name == "state" ? std::span<const float>(state) : std::span<const float>(logits_));
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
      state->elements() != static_cast<std::uint64_t>(state_.size()) ||
      (logits->elements() != vocabulary && logits->elements() != 0)) {
    fail(ErrorKind::BadFile, "{}: the state has not the size of this model", path.string());
  }
  std::vector<float> new_state(static_cast<std::size_t>(state_.size())), new_logits(logits->elements());
  file.read_as<float>(*state, new_state);
  file.read_as<float>(*logits, new_logits);
  if (state_digest(new_state, new_logits) != value("sha256"))
    fail(ErrorKind::BadFile, "{}: damaged, its checksum does not match", path.string());
  Index position = 0;
  const auto text = value("position");
  const auto [rest, status] = std::from_chars(text.data(), text.data() + text.size(), position);
  if (status != std::errc{} || rest != text.data() + text.size() || position < 0)
    fail(ErrorKind::BadFile, "{}: its position is not a number", path.string());
  upload(stream_, new_state, state_.view());
  logits_ = std::move(new_logits);
  position_ = position;
}

void all_logits(const Runner& runner, Capacity capacity, Stream& stream, std::span<const std::int32_t> tokens,
                LogitsPath path, const std::function<void(Index, Matrix<const float>)>& take) {
  runner.check_tokens(tokens, "tokens");
  Arena arena(stream.device());
  const Array<float> state(stream.device(), runner.state_size(stream, capacity), "the state of a sequence");
  launch(stream, Fill<float>{.x = dense(state.data(), 1, state.size()), .value = 0});
  const Index vocabulary = runner.config().vocab_size;
  std::vector<float> rows_on_host(static_cast<std::size_t>(kLogitRows * vocabulary));
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
    const auto ids = arena.vector<std::int32_t>(pass.length);
    const auto device_position = arena.vector<Index>(1);
    upload(stream, part, ids);
    upload(stream, {&position, 1}, device_position);
    runner.with(stream, [&](const auto& model, const auto& weights) {
      const auto hidden =
          model.extend(pass, weights, ids, dense(state.data(), 1, state.size()), {{&position, 1}, device_position});
      for (Index row = 0; row < hidden.rows; row += kLogitRows) {
        const auto mark = arena.mark();
        const Index rows = std::min(kLogitRows, hidden.rows - row);
        const auto logits = arena.matrix<float>(rows, vocabulary);
        model.head(pass, weights, hidden.middle(row, rows), logits);
        const auto host = std::span(rows_on_host).first(static_cast<std::size_t>(rows * vocabulary));
        download(stream, Vector<float>{logits.data, rows * vocabulary}, host);
        take(position + row, dense<const float>(host.data(), rows, vocabulary));
        arena.release(mark);
      }
    });
  }
}

}  // namespace essh
