#include "essh/train/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "essh/base/file.h"
#include "essh/base/json.h"
#include "essh/base/log.h"
#include "essh/config/fields.h"
#include "essh/store/folder_writer.h"
#include "essh/store/manifest.h"
#include "essh/store/safetensors.h"

namespace essh {
namespace fs = std::filesystem;
namespace {

// The numbers of a snapshot, in trainer.json.
struct Header {
  std::string stage, data, recipe;
  std::string layout = {};
  Index step = 0, position = 0;
  double tokens = 0, validation = 0;
  std::vector<double> sampler;
};

template <class Visitor>
void fields(Visitor& visit, Header& h) {
  visit("stage", h.stage, Field{.required = true});
  visit("step", h.step, Field{.min = 0, .required = true});
  visit("position", h.position, Field{.min = 0, .required = true});
  visit("tokens", h.tokens, Field{.min = 0, .required = true});
  visit("validation", h.validation, Field{.required = true});
  visit("sampler", h.sampler, Field{});
  visit("data", h.data, Field{.required = true});
  visit("recipe", h.recipe, Field{.required = true});
  visit("layout", h.layout, Field{});
}

// Of the order of the tensors in the flat arrays.
std::string layout_fingerprint(const ParameterLayout& layout) {
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const auto& spec : layout.tensors()) {
    for (const char c : fmt::format("{} {} {}\n", spec.name, spec.rows, spec.cols))
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  return fmt::format("{:016x}", hash);
}

std::string folder_name(Index step) {
  return fmt::format("step-{:08}", step);
}

void require_finite(const Snapshot& s) {
  for (const auto* values : {&s.weights, &s.first, &s.second}) {
    for (const float x : *values) {
      if (!std::isfinite(x))
        fail(ErrorKind::Internal, "step {}: weights or moments are not finite; nothing was saved", s.step);
    }
  }
}

}  // namespace

std::vector<Index> checkpoint_steps(const fs::path& folder) {
  std::vector<Index> steps;
  if (!fs::is_directory(folder)) return steps;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const auto name = entry.path().filename().string();
    Index step = 0;
    if (!name.starts_with("step-")) continue;
    const auto [rest, status] = std::from_chars(name.data() + 5, name.data() + name.size(), step);
    if (status == std::errc{} && rest == name.data() + name.size()) steps.push_back(step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

Snapshot read_checkpoint(const fs::path& folder) {
  check_manifest(folder).fail_if_any(folder.string());
  Header header;
  const auto place = (folder / "trainer.json").string();
  read_fields(header, read_json(place, {.bytes = 8u << 20}), place);
  Snapshot s{.stage = header.stage,
             .config = {},
             .weights = {},
             .first = {},
             .second = {},
             .squares = {},
             .sampler = header.sampler,
             .step = header.step,
             .position = header.position,
             .tokens = header.tokens,
             .validation = header.validation,
             .data = header.data,
             .recipe = header.recipe};
  const auto config_path = (folder / "config.json").string();
  s.config = parse_config(read_json(config_path), config_path);
  const ParameterLayout layout(s.config);
  if (header.layout != layout_fingerprint(layout))
    fail(ErrorKind::BadFile, "{}: made by a version of essh that orders the tensors differently", place);
  const auto file = SafetensorsFile::open(folder / "state.safetensors");
  const auto read = [&](const char* name, std::uint64_t size, auto& into) {
    const auto* info = file.find(name);
    if (info == nullptr || info->elements() != size)
      fail(ErrorKind::BadFile, "{}: {} has not the size of the model", file.place(), name);
    into.resize(size);
    file.read_as<typename std::decay_t<decltype(into)>::value_type>(*info, into);
  };
  const auto size = static_cast<std::uint64_t>(layout.size());
  read("weights", size, s.weights);
  read("first", size, s.first);
  read("second", size, s.second);
  read("squares", static_cast<std::uint64_t>(s.config.num_hidden_layers * s.config.intermediate_size), s.squares);
  return s;
}

Checkpoints::Checkpoints(fs::path folder, Index keep) : folder_(std::move(folder)), keep_(keep) {
  make_folder(folder_);
  remove_leftovers(folder_);
}

Checkpoints::~Checkpoints() {
  if (writing_.valid()) writing_.wait();
}

std::optional<Snapshot> Checkpoints::newest() const {
  auto steps = checkpoint_steps(folder_);
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    try {
      return read_checkpoint(folder_ / folder_name(*step));
    } catch (const Error& error) {
      log::warn("passing over a checkpoint: {}", error.what());
    }
  }
  return std::nullopt;
}

void Checkpoints::save(Snapshot snapshot) {
  finish();
  require_finite(snapshot);
  writing_ = std::async(std::launch::async, [this, taken = std::move(snapshot)]() mutable {
    {
      // Freed as soon as it is on disk: the task itself lives on until the next save.
      const Snapshot written = std::move(taken);
      write(written);
    }
    prune();
  });
}

void Checkpoints::finish() {
  if (writing_.valid()) writing_.get();
}

void Checkpoints::write(const Snapshot& s) const {
  FolderWriter writer(folder_ / folder_name(s.step), ExistingFolder::Replace);
  const Header header{.stage = s.stage,
                      .data = s.data,
                      .recipe = s.recipe,
                      .layout = layout_fingerprint(ParameterLayout(s.config)),
                      .step = s.step,
                      .position = s.position,
                      .tokens = s.tokens,
                      .validation = s.validation,
                      .sampler = s.sampler};
  write_durably(writer.folder() / "trainer.json", to_text(write_fields(header), 2) + "\n");
  write_durably(writer.folder() / "config.json", to_text(config_json(s.config), 2) + "\n");
  const auto size = static_cast<std::uint64_t>(s.weights.size());
  SafetensorsWriter file(writer.folder() / "state.safetensors", {{"weights", DType::F32, {size}},
                                                                 {"first", DType::F32, {size}},
                                                                 {"second", DType::F32, {size}},
                                                                 {"squares", DType::F64, {s.squares.size()}}});
  for (const auto& info : file.tensors()) {
    if (info.name == "squares")
      file.write_as<double>(info, s.squares);
    else
      file.write_as<float>(info, info.name == "weights" ? s.weights : info.name == "first" ? s.first : s.second);
  }
  file.commit();
  writer.commit();
}

void Checkpoints::prune() const {
  const auto steps = checkpoint_steps(folder_);
  if (static_cast<Index>(steps.size()) <= keep_) return;
  Index best = -1;
  double lowest = 0;
  for (const Index step : steps) {
    Header header;
    const auto place = (folder_ / folder_name(step) / "trainer.json").string();
    try {
      read_fields(header, read_json(place, {.bytes = 8u << 20}), place);
    } catch (const Error&) {
      continue;
    }
    if (header.validation > 0 && (best < 0 || header.validation < lowest)) {
      best = step;
      lowest = header.validation;
    }
  }
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep_) < steps.size(); ++i) {
    if (steps[i] == best) continue;
    // First the mark of completeness goes: a crash in between leaves a folder that nobody takes for whole.
    std::error_code ignored;
    fs::remove(folder_ / folder_name(steps[i]) / kManifestName, ignored);
    fs::remove_all(folder_ / folder_name(steps[i]), ignored);
  }
}

}  // namespace essh
