#include "essh/store/manifest.h"

#include <algorithm>
#include <map>
#include <vector>

#include "essh/base/error.h"
#include "essh/base/file.h"
#include "essh/base/sha256.h"
#include "essh/base/temporary.h"
#include "essh/base/utf8.h"

namespace essh {
namespace fs = std::filesystem;
namespace {

constexpr std::uint64_t kMaxManifestBytes = 64u << 20;
constexpr std::size_t kDigestCharacters = 64;

// Names that need no escaping in the format and stay inside the folder.
bool is_listable(std::string_view name) {
  if (name.empty() || name.find('\\') != std::string_view::npos || fs::path(name).is_absolute()) return false;
  if (std::ranges::any_of(name, [](unsigned char c) { return c < 0x20 || c == 0x7f; })) return false;
  return std::ranges::none_of(fs::path(name), [](const fs::path& part) { return part == ".." || part == "."; });
}

std::vector<std::string> files_of(const fs::path& folder) try {
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().lexically_relative(folder).generic_string();
    if (entry.is_directory() || name == kManifestName) continue;
    if (!entry.is_regular_file() || !is_listable(name)) {
      fail(ErrorKind::BadFile, "{}: {} cannot be listed in {}: not a regular file, or an odd name", folder.string(),
           in_quotes(name), kManifestName);
    }
    names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
} catch (const fs::filesystem_error& error) {
  fail(ErrorKind::BadFile, "{}: cannot list the folder: {}", folder.string(), error.code().message());
}

struct Line {
  std::string name;
  std::string digest;
};

Line parse_line(std::string_view line, std::size_t number, const fs::path& path) {
  const bool hex = line.size() > kDigestCharacters &&
                   std::ranges::all_of(line.substr(0, kDigestCharacters),
                                       [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
  const bool marked = hex && line.size() > kDigestCharacters + 2 && line[kDigestCharacters] == ' ' &&
                      (line[kDigestCharacters + 1] == ' ' || line[kDigestCharacters + 1] == '*');
  if (!marked || !is_listable(line.substr(kDigestCharacters + 2))) {
    fail(ErrorKind::BadFile, "{}: line {} is not a SHA-256 sum and a file of this folder", path.string(), number);
  }
  return {std::string(line.substr(kDigestCharacters + 2)), std::string(line.substr(0, kDigestCharacters))};
}

// Digests by name.
std::map<std::string, std::string> read_lines(const fs::path& folder) {
  const fs::path path = folder / kManifestName;
  std::error_code unknown;
  if (!fs::exists(path, unknown)) {
    fail(ErrorKind::BadFile, "{}: {} is missing; the folder is incomplete or was not written by essh", folder.string(),
         kManifestName);
  }
  const std::string text = read_text(path, kMaxManifestBytes);
  if (!text.ends_with('\n')) {
    fail(ErrorKind::BadFile, "{}: {}", path.string(), text.empty() ? "is empty" : "the last line is cut off");
  }
  std::map<std::string, std::string> listed;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    auto [name, digest] = parse_line(std::string_view(text).substr(begin, end - begin), listed.size() + 1, path);
    begin = end + 1;
    if (!listed.emplace(std::move(name), std::move(digest)).second) {
      fail(ErrorKind::BadFile, "{}: a file is listed twice", path.string());
    }
  }
  return listed;
}

void check_digest(const fs::path& folder, const std::string& name, const std::string& digest, Problems& problems) {
  try {
    if (const auto found = sha256_of_file(folder / name); found != digest) {
      problems.add(fmt::format("{} has SHA-256 {}, {} says {}", name, found, kManifestName, digest));
    }
  } catch (const Error& error) {
    problems.add(error.what());
  }
}

}  // namespace

void write_manifest(const fs::path& folder) {
  std::string text;
  for (const auto& name : files_of(folder)) text += fmt::format("{}  {}\n", sha256_of_file(folder / name), name);
  write_durably(folder / kManifestName, text);
}

Problems check_manifest(const fs::path& folder, std::span<const std::string> required) {
  Problems problems;
  const auto listed = read_lines(folder);
  std::error_code unknown;
  for (const auto& [name, digest] : listed) {
    if (!fs::exists(folder / name, unknown)) {
      problems.add(fmt::format("{} is missing", name));
    } else {
      check_digest(folder, name, digest, problems);
    }
  }
  for (const auto& name : required) {
    if (!listed.contains(name)) problems.add(fmt::format("{} is not listed in {}", name, kManifestName));
  }
  return problems;
}

std::vector<std::string> unlisted_files(const fs::path& folder) try {
  const auto listed = read_lines(folder);
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().lexically_relative(folder).generic_string();
    if (entry.symlink_status().type() == fs::file_type::directory || name == kManifestName) continue;
    if (!listed.contains(name) && !is_temporary_name(entry.path().filename().string())) names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
} catch (const fs::filesystem_error& error) {
  fail(ErrorKind::BadFile, "{}: cannot list the folder: {}", folder.string(), error.code().message());
}

}  // namespace essh
