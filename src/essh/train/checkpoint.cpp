#include "essh/train/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "essh/base/file.h"
#include "essh/base/fnv.h"
#include "essh/base/json.h"
#include "essh/base/log.h"
#include "essh/config/fields.h"
#include "essh/store/folder_writer.h"
#include "essh/store/manifest.h"
#include "essh/store/safetensors.h"

namespace essh {
namespace fs = std::filesystem;
namespace {

// Of the order of the tensors in flat arrays.
std::string layout_fingerprint(const ParameterLayout& layout) {
  auto hash = kFnvStart;
  for (const auto& spec : layout.tensors())
    hash = fnv1a(fmt::format("{} {} {}\n", spec.name, spec.rows, spec.cols), hash);
  return fmt::format("{:016x}", hash);
}

constexpr const char* kDamaged = "damaged-";

std::string folder_name(Index step) {
  return fmt::format("step-{:08}", step);
}

void check_files(const fs::path& folder) {
  const std::vector<std::string> required = {"config.json", "state.safetensors", "trainer.json"};
  check_manifest(folder, required).fail_if_any(folder.string());
}

void require_finite(const Snapshot& s) {
  const auto check = [&](const std::vector<float>& values) {
    if (!std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); }))
      fail(ErrorKind::Internal, "step {}: weights or optimizer states are not finite; nothing was saved", s.step);
  };
  check(s.weights);
  for (const auto& [name, values] : s.states) check(values);
}

// visit(name, shape, values) for every tensor of a flat array, as the file has it. Span: of float or const float.
template <class Span, class Visit>
void for_each_tensor(const ParameterLayout& layout, const std::string& array, Span values, const Visit& visit) {
  for (std::size_t i = 0; i < layout.tensors().size(); ++i) {
    const auto& spec = layout.tensors()[i];
    const auto shape = spec.shape();
    visit(array + "/" + spec.name, std::vector<std::uint64_t>(shape.begin(), shape.end()),
          values.subspan(static_cast<std::size_t>(layout.offset(i)), static_cast<std::size_t>(spec.rows * spec.cols)));
  }
}

}  // namespace

SnapshotHeader read_checkpoint_header(const fs::path& folder) {
  SnapshotHeader header;
  const auto place = (folder / "trainer.json").string();
  read_fields(header, read_json(place, {.bytes = 8u << 20}), place);
  return header;
}

fs::path checkpoint_folder(const fs::path& folder, Index step) {
  return folder / folder_name(step);
}

bool has_damaged_checkpoints(const fs::path& folder) {
  if (!fs::is_directory(folder)) return false;
  const fs::directory_iterator entries(folder);
  return std::any_of(begin(entries), end(entries), [](const fs::directory_entry& entry) {
    return entry.path().filename().string().starts_with(kDamaged);
  });
}

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
  check_files(folder);
  Snapshot s{read_checkpoint_header(folder)};
  const auto config_path = (folder / "config.json").string();
  s.config = parse_config(read_json(config_path), config_path);
  const ParameterLayout layout(s.config);
  const auto file = SafetensorsFile::open(folder / "state.safetensors");
  const bool flat = file.find("weights") != nullptr;
  if (flat && s.layout != layout_fingerprint(layout))
    fail(ErrorKind::BadFile, "{}: made by a version of essh that orders the tensors differently", file.place());
  const auto wrong_size = [&](const std::string& name) {
    fail(ErrorKind::BadFile, "{}: {} has not the size of the model", file.place(), name);
  };
  // Before memory is taken for what a damaged config.json asks for.
  std::uint64_t stored = 0;
  for (const auto& info : file.tensors()) stored += info.elements();
  if (static_cast<std::uint64_t>(layout.parameters()) > stored) wrong_size("weights");
  const auto read = [&](const std::string& name, const std::vector<std::uint64_t>& shape, auto values) {
    const auto* info = file.find(name);
    if (info == nullptr || info->shape != shape) wrong_size(name);
    file.read_as<typename decltype(values)::value_type>(*info, values);
  };
  const auto read_array = [&](const std::string& name, std::vector<float>& values) {
    values.resize(static_cast<std::size_t>(layout.size()));
    if (flat)
      read(name, {values.size()}, std::span(values));
    else
      for_each_tensor(layout, name, std::span(values), read);
  };
  for (const auto& info : file.tensors()) {
    const auto array = info.name.substr(0, info.name.find('/'));
    if (array != "weights" && array != "squares" && !s.states.contains(array)) read_array(array, s.states[array]);
  }
  read_array("weights", s.weights);
  s.squares.resize(static_cast<std::size_t>(s.config.num_hidden_layers * s.config.intermediate_size));
  read("squares", {s.squares.size()}, std::span(s.squares));
  return s;
}

Checkpoints::Checkpoints(fs::path folder, Index keep) : folder_(std::move(folder)), keep_(keep) {
  make_folder(folder_);
  remove_leftovers(folder_);
}

Checkpoints::~Checkpoints() {
  if (writing_.valid()) writing_.wait();
}

std::optional<Snapshot> Checkpoints::newest() {
  auto steps = checkpoint_steps(folder_);
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    try {
      auto snapshot = read_checkpoint(folder_ / folder_name(*step));
      whole_.insert(*step);
      return snapshot;
    } catch (const Error& error) {
      set_aside(*step, error.what());
    }
  }
  return std::nullopt;
}

bool Checkpoints::is_whole(Index step) {
  if (whole_.contains(step)) return true;
  try {
    check_files(folder_ / folder_name(step));
    whole_.insert(step);
    return true;
  } catch (const Error& error) {
    set_aside(step, error.what());
    return false;
  }
}

void Checkpoints::set_aside(Index step, const char* why) const {
  const auto from = folder_ / folder_name(step);
  fs::path to = folder_ / (kDamaged + folder_name(step));
  for (int number = 2; fs::exists(to); ++number)
    to = folder_ / fmt::format("{}{}-{}", kDamaged, folder_name(step), number);
  log::warn("a damaged checkpoint, now called {}: {}", to.filename().string(), why);
  rename_path(from, to);
}

void Checkpoints::save(Snapshot snapshot) {
  finish();
  require_finite(snapshot);
  writing_ = std::async(std::launch::async, [this, taken = std::move(snapshot)]() mutable {
    {
      // Freed as soon as it is on disk: the task itself lives on until the next save.
      const Snapshot written = std::move(taken);
      write(written);
      whole_.insert(written.step);
    }
    prune();
  });
}

void Checkpoints::finish() {
  if (writing_.valid()) writing_.get();
}

void Checkpoints::write(const Snapshot& s) const {
  FolderWriter writer(folder_ / folder_name(s.step), ExistingFolder::Replace);
  const ParameterLayout layout(s.config);
  std::vector<TensorSpec> specs = {{"squares", DType::F64, {s.squares.size()}}};
  std::map<std::string, std::span<const float>> tensors;
  const auto add = [&](const std::string& array, std::span<const float> values) {
    for_each_tensor(layout, array, values, [&](const std::string& name, const auto& shape, auto tensor) {
      specs.push_back({name, DType::F32, shape});
      tensors[name] = tensor;
    });
  };
  add("weights", s.weights);
  for (const auto& [name, values] : s.states) add(name, values);
  write_durably(writer.folder() / "trainer.json", to_text(write_fields<SnapshotHeader>(s), 2) + "\n");
  write_durably(writer.folder() / "config.json", to_text(config_json(s.config), 2) + "\n");
  SafetensorsWriter file(writer.folder() / "state.safetensors", specs);
  for (const auto& info : file.tensors()) {
    if (info.name == "squares")
      file.write_as<double>(info, s.squares);
    else
      file.write_as<float>(info, tensors.at(info.name));
  }
  file.commit();
  writer.commit();
}

void Checkpoints::prune() {
  auto steps = checkpoint_steps(folder_);
  if (static_cast<Index>(steps.size()) <= keep_) return;
  std::erase_if(steps, [&](Index step) { return !is_whole(step); });
  Index best = -1;
  double lowest = 0;
  for (const Index step : steps) {
    const double validation = read_checkpoint_header(folder_ / folder_name(step)).validation;
    if (validation <= 0 || (best >= 0 && validation >= lowest)) continue;
    best = step;
    lowest = validation;
  }
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep_) < steps.size(); ++i) {
    if (steps[i] == best) continue;
    // Renamed first: a crash in between leaves a temporary, not a damaged checkpoint.
    const auto path = folder_ / folder_name(steps[i]);
    const TemporaryPath going(path);
    rename_path(path, going.path());
    whole_.erase(steps[i]);
  }
}

}  // namespace essh
