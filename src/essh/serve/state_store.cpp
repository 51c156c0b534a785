#include "essh/serve/state_store.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <random>

#include "essh/base/error.h"
#include "essh/base/log.h"
#include "essh/base/sha256.h"
#include "essh/serve/http.h"
#include "essh/store/safetensors.h"

namespace essh::serve {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kIdLength = 32;
constexpr const char* kSuffix = ".state";

bool is_id(std::string_view text) {
  return text.size() == kIdLength &&
         std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

std::string new_id() {
  std::random_device device;
  std::string id;
  while (id.size() < kIdLength) id += fmt::format("{:08x}", device());
  return id;
}

std::string part_name(std::size_t part) {
  return fmt::format("part.{}", part);
}

// Covers all metadata and tensors.
std::string digest(const SavedState& saved, const std::string& owner) {
  Sha256 hash;
  const auto add = [&](std::span<const std::byte> bytes) {
    const std::uint64_t size = bytes.size();
    hash.update(std::as_bytes(std::span(&size, 1)));
    hash.update(bytes);
  };
  for (const auto& part : saved.state.parts) add(part);
  add(std::as_bytes(std::span(saved.pending)));
  add(std::as_bytes(std::span(saved.sampler.recent)));
  add(std::as_bytes(std::span(owner)));
  const std::array<std::uint64_t, 5> numbers = {
      saved.sampler.seed, saved.sampler.position, static_cast<std::uint64_t>(saved.state.position),
      static_cast<std::uint64_t>(saved.tier.capacity.channels), static_cast<std::uint64_t>(saved.tier.capacity.ffn)};
  add(std::as_bytes(std::span(numbers)));
  return hash.hex();
}

HttpError unknown_state() {
  return {404, "there is no such state; save one with \"save_state\": true", "state", "state_not_found"};
}

}  // namespace

StateStore::StateStore(StateStoreOptions options) : options_(std::move(options)) {
  std::error_code code;
  fs::create_directories(options_.folder, code);
  if (!fs::is_directory(options_.folder))
    fail(ErrorKind::Usage, "{}: not a folder that can be made; choose another for --allow-states",
         options_.folder.string());
  for (const auto& entry : fs::directory_iterator(options_.folder)) {
    if (entry.path().extension() == kSuffix && is_id(entry.path().stem().string())) bytes_ += entry.file_size();
  }
  thread_ = std::thread([this] { work(); });
}

fs::path StateStore::path_of(const std::string& id) const {
  if (!is_id(id)) throw unknown_state();
  return options_.folder / (id + kSuffix);
}

bool StateStore::full() const {
  const std::lock_guard lock(mutex_);
  return bytes_ >= options_.quota;
}

void StateStore::save(SavedState state, std::string owner, std::function<void(Receipt)> done) {
  const std::lock_guard lock(mutex_);
  orders_.push_back({std::move(state), std::move(owner), std::move(done)});
  wake_.notify_one();
}

void StateStore::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    wake_.notify_one();
  }
  std::call_once(joined_, [this] { thread_.join(); });
}

void StateStore::work() {
  for (;;) {
    Order order;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stopping_ || !orders_.empty(); });
      if (orders_.empty()) return;
      order = std::move(orders_.front());
      orders_.pop_front();
    }
    Receipt receipt;
    try {
      receipt = write(order.state, order.owner);
    } catch (const std::exception& error) {
      log::warn("serve: a state could not be saved: {}", error.what());
      receipt.error = "the state could not be written; see the server's messages";
    }
    order.done(std::move(receipt));
  }
}

StateStore::Receipt StateStore::write(const SavedState& saved, const std::string& owner) {
  const auto& state = saved.state;
  {
    const std::lock_guard lock(mutex_);
    if (bytes_ + state.bytes() > options_.quota)
      return {.error = fmt::format("the states would exceed {} bytes; delete some", options_.quota)};
  }
  const auto id = new_id();
  const auto path = path_of(id);
  const Metadata metadata = {{"essh", "served state 1"},
                             {"model", options_.model},
                             {"precision", options_.precision},
                             {"owner", owner},
                             {"tier", saved.tier.name},
                             {"channels", std::to_string(saved.tier.capacity.channels)},
                             {"ffn", std::to_string(saved.tier.capacity.ffn)},
                             {"caches", traits(state.rows).name},
                             {"position", std::to_string(state.position)},
                             {"seed", std::to_string(saved.sampler.seed)},
                             {"draws", std::to_string(saved.sampler.position)},
                             {"sha256", digest(saved, owner)}};
  std::vector<TensorSpec> specs = {{"pending", DType::I32, {saved.pending.size()}},
                                   {"recent", DType::I32, {saved.sampler.recent.size()}}};
  for (std::size_t i = 0; i < state.parts.size(); ++i)
    specs.push_back({part_name(i), DType::U8, {state.parts[i].size()}});
  SafetensorsWriter writer(path, specs, metadata);
  for (const auto& info : writer.tensors()) {
    if (info.name == "pending") writer.write(info, std::as_bytes(std::span(saved.pending)));
    if (info.name == "recent") writer.write(info, std::as_bytes(std::span(saved.sampler.recent)));
    for (std::size_t i = 0; i < state.parts.size(); ++i) {
      if (info.name == part_name(i)) writer.write(info, state.parts[i]);
    }
  }
  writer.commit();
  const auto bytes = fs::file_size(path);
  const std::lock_guard lock(mutex_);
  bytes_ += bytes;
  return {.id = id, .bytes = bytes};
}

SavedState StateStore::load(const std::string& id, const std::string& owner) const {
  const auto path = path_of(id);
  if (!fs::exists(path)) throw unknown_state();
  const auto damaged = [] {
    return HttpError(409, "the state is damaged; compute it again", "state", "state_damaged");
  };
  try {
    const auto file = SafetensorsFile::open(path);
    const auto text = [&](const char* key) {
      const auto found = file.metadata().find(key);
      return found == file.metadata().end() ? std::string() : found->second;
    };
    const auto number = [&]<class T>(const char* key, T& value) {
      const auto written = text(key);
      const auto [end, status] = std::from_chars(written.data(), written.data() + written.size(), value);
      if (status != std::errc{} || end != written.data() + written.size() || value < T{}) throw damaged();
    };
    // 404, so that only the owner learns that the id exists.
    if (text("owner") != owner) throw unknown_state();
    if (text("essh") != "served state 1") throw damaged();
    if (text("model") != options_.model || text("precision") != options_.precision)
      throw HttpError(409, "the state is of another model or precision; compute it again", "state",
                      "state_of_other_model");
    SavedState saved;
    saved.tier.name = text("tier");
    number("channels", saved.tier.capacity.channels);
    number("ffn", saved.tier.capacity.ffn);
    saved.state.capacity = saved.tier.capacity;
    number("position", saved.state.position);
    number("seed", saved.sampler.seed);
    number("draws", saved.sampler.position);
    for (const auto format : {Format::F32, Format::BF16}) {
      if (text("caches") == traits(format).name) saved.state.rows = format;
    }
    const auto ids = [&](const char* name, std::vector<TokenId>& values) {
      const auto* info = file.find(name);
      if (!info || info->dtype != DType::I32) throw damaged();
      values.resize(info->elements());
      file.read(*info, std::as_writable_bytes(std::span(values)));
    };
    ids("pending", saved.pending);
    ids("recent", saved.sampler.recent);
    for (std::size_t i = 0; i + 2 < file.tensors().size(); ++i) {
      const auto* info = file.find(part_name(i));
      if (!info) throw damaged();
      file.read(*info, saved.state.parts.emplace_back(info->bytes()));
    }
    if (digest(saved, owner) != text("sha256")) throw damaged();
    return saved;
  } catch (const Error&) {
    throw damaged();
  }
}

void StateStore::remove(const std::string& id, const std::string& owner) {
  const auto path = path_of(id);
  std::uint64_t bytes = 0;
  try {
    const auto file = SafetensorsFile::open(path);
    const auto found = file.metadata().find("owner");
    if (found == file.metadata().end() || found->second != owner) throw unknown_state();
    bytes = fs::file_size(path);
  } catch (const Error&) {
    throw unknown_state();
  }
  std::error_code code;
  if (!fs::remove(path, code)) throw unknown_state();
  const std::lock_guard lock(mutex_);
  bytes_ -= std::min(bytes, bytes_);
}

}  // namespace essh::serve
