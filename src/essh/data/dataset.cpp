#include "essh/data/dataset.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "essh/base/error.h"
#include "essh/base/sha256.h"
#include "essh/data/dataset_manifest.h"

namespace essh {
namespace fs = std::filesystem;
namespace {

// N of a file named dataset-IofN.json.
std::optional<int> parts_in_name(std::string_view name) {
  constexpr std::string_view kStart = "dataset-";
  constexpr std::string_view kEnd = ".json";
  if (!name.starts_with(kStart) || !name.ends_with(kEnd)) return std::nullopt;
  name = name.substr(kStart.size(), name.size() - kStart.size() - kEnd.size());
  const auto middle = name.find("of");
  if (middle == std::string_view::npos) return std::nullopt;
  const auto digits = name.substr(middle + 2);
  int parts = 0;
  const auto [stop, status] = std::from_chars(digits.data(), digits.data() + digits.size(), parts);
  if (status != std::errc{} || stop != digits.data() + digits.size() || parts < 2) return std::nullopt;
  return parts;
}

std::vector<DatasetManifest> read_manifests(const fs::path& folder) {
  if (!fs::is_directory(folder))
    fail(ErrorKind::BadFile, "{}: no such folder; make it with essh prepare", folder.string());
  if (const auto single = manifest_path(folder, 1, 1); fs::exists(single)) return {read_manifest(single)};
  std::optional<int> parts;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const auto named = parts_in_name(entry.path().filename().string());
    if (named && parts && *named != *parts) {
      fail(ErrorKind::BadFile, "{}: holds parts of {} and parts of {}; keep one set", folder.string(), *parts, *named);
    }
    if (named) parts = named;
  }
  if (!parts) fail(ErrorKind::BadFile, "{}: no dataset.json; prepare was not run or not finished", folder.string());
  std::vector<DatasetManifest> manifests;
  for (int part = 1; part <= *parts; ++part) {
    const auto path = manifest_path(folder, part, *parts);
    if (!fs::exists(path))
      fail(ErrorKind::BadFile, "{}: part {} of {} is missing or not finished", path.string(), part, *parts);
    manifests.push_back(read_manifest(path));
    auto expected = manifests.front().plan;
    expected.part = part;
    if (const auto why = difference(expected, manifests.back().plan);
        !why.empty() || manifests.back().plan.parts != *parts) {
      fail(ErrorKind::BadFile, "{}: not a part of the same dataset as part 1: {}", path.string(), why);
    }
  }
  return manifests;
}

}  // namespace

TokenStream::TokenStream(std::vector<Shard> shards) : shards_(std::move(shards)) {
  for (const auto& shard : shards_) starts_.push_back(starts_.back() + shard.tokens());
}

void TokenStream::read(std::int64_t first, std::span<std::int32_t> out) const {
  ESSH_ASSERT(first >= 0 && static_cast<std::int64_t>(out.size()) <= tokens() - first);
  auto shard = static_cast<std::size_t>(std::ranges::upper_bound(starts_, first) - starts_.begin()) - 1;
  while (!out.empty()) {
    const auto inside = first - starts_[shard];
    const auto take = std::min(static_cast<std::int64_t>(out.size()), shards_[shard].tokens() - inside);
    shards_[shard].read(inside, out.first(static_cast<std::size_t>(take)));
    out = out.subspan(static_cast<std::size_t>(take));
    first += take;
    ++shard;
  }
}

std::int64_t TokenStream::windows(std::int64_t context) const {
  ESSH_ASSERT(context > 0);
  return std::max<std::int64_t>(tokens() - 1, 0) / context;
}

void TokenStream::read_window(std::int64_t index, std::span<std::int32_t> out) const {
  read(index * (static_cast<std::int64_t>(out.size()) - 1), out);
}

Dataset::Dataset(const fs::path& folder, Verify verify) {
  const auto manifests = read_manifests(folder);
  format_ = manifests.front().plan.tokens;
  eos_id_ = manifests.front().plan.eos_id;
  Sha256 fingerprint;
  double valid_bytes = 0;
  const auto open_split = [&](SplitManifest DatasetManifest::*split) {
    std::vector<Shard> shards;
    for (const auto& manifest : manifests) {
      for (const auto& entry : (manifest.*split).shards) {
        shards.emplace_back(folder, entry, format_, verify);
        const auto line = fmt::format("{} {};", entry.tokens, entry.checksum);
        fingerprint.update(std::as_bytes(std::span(line)));
      }
    }
    fingerprint.update(std::as_bytes(std::span("\n", 1)));
    return TokenStream(std::move(shards));
  };
  train_ = open_split(&DatasetManifest::train);
  valid_ = open_split(&DatasetManifest::valid);
  for (const auto& manifest : manifests) valid_bytes += static_cast<double>(manifest.valid.bytes);
  if (valid_.tokens() > 0) valid_bytes_per_token_ = valid_bytes / static_cast<double>(valid_.tokens());
  fingerprint.update(std::as_bytes(std::span(format_.tokenizer_hash)));
  fingerprint_ = fingerprint.hex();
}

}  // namespace essh
