#include "essh/data/source_list.h"

#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <unordered_set>

#include "essh/base/error.h"
#include "essh/base/log.h"
#include "essh/data/byte_stream.h"

namespace essh {
namespace fs = std::filesystem;
namespace {

// Text has no zero bytes; UTF-16 and most binary formats have one early.
bool looks_binary(const fs::path& path) {
  char start[1024];
  const auto stream = open_byte_stream(path);
  const auto size = stream->read(start);
  return std::memchr(start, 0, size) != nullptr;
}

std::vector<std::string> matches(const std::string& pattern) {
  glob_t found{};
  const int status = ::glob(pattern.c_str(), GLOB_NOSORT | GLOB_ERR, nullptr, &found);
  std::vector<std::string> paths(found.gl_pathv, found.gl_pathv + (status == 0 ? found.gl_pathc : 0));
  ::globfree(&found);
  if (status != 0 && status != GLOB_NOMATCH)
    fail(ErrorKind::BadFile, "{}: cannot read a folder of this pattern", pattern);
  if (paths.empty()) fail(ErrorKind::BadFile, "{}: no file matches", pattern);
  std::ranges::sort(paths);
  return paths;
}

class Finder {
 public:
  Finder(std::optional<CorpusFormat> format, const fs::path& exclude) : format_(format), exclude_(exclude) {}

  void add(const std::string& word) {
    if (word == "-") return add_file(word, false);
    if (fs::is_directory(word)) return add_folder(word);
    if (!fs::exists(word) && word.find_first_of("*?[") != std::string::npos) {
      for (const auto& path : matches(word)) fs::is_directory(path) ? add_folder(path) : add_file(path, false);
      return;
    }
    add_file(word, false);
  }

  std::vector<SourceFile> sources() && { return std::move(sources_); }

 private:
  void add_folder(const fs::path& folder) {
    if (is_excluded(folder)) fail(ErrorKind::Usage, "{}: is the folder to write to; choose another", folder.string());
    std::vector<std::string> paths;
    for (auto at = fs::recursive_directory_iterator(folder); at != fs::recursive_directory_iterator(); ++at) {
      const bool hidden = at->path().filename().string().starts_with('.');
      if (at->is_directory()) {
        if (hidden || is_excluded(at->path())) at.disable_recursion_pending();
      } else if (at->is_regular_file() && !hidden) {
        paths.push_back(at->path().string());
      }
    }
    std::ranges::sort(paths);
    for (const auto& path : paths) add_file(path, true);
    if (paths.empty()) log::warn("{}: no files in this folder", folder.string());
  }

  bool is_excluded(const fs::path& folder) const { return fs::exists(exclude_) && fs::equivalent(folder, exclude_); }

  void add_file(const std::string& path, bool may_skip) {
    auto source = describe_source(path);
    const auto format = format_.value_or(path == "-" ? CorpusFormat::Text : format_of_name(path));
    source.format = format_name(format);
    if (format == CorpusFormat::Text && !source.pipe && looks_binary(path)) {
      if (!may_skip) fail(ErrorKind::Unsupported, "{}: looks like a binary file, not UTF-8 text", path);
      log::warn("{}: looks like a binary file, skipped", path);
      return;
    }
    if (!seen_.insert(fs::path(path).lexically_normal().string()).second) {
      log::warn("{}: named twice, taken once", path);
      return;
    }
    sources_.push_back(std::move(source));
  }

  std::optional<CorpusFormat> format_;
  fs::path exclude_;
  std::vector<SourceFile> sources_;
  std::unordered_set<std::string> seen_;
};

}  // namespace

SourceFile describe_source(const std::string& path) {
  if (path == "-") return {.path = path, .format = "", .size = 0, .mtime = 0, .pipe = true};
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) fail(ErrorKind::BadFile, "{}: {}", path, std::strerror(errno));
  if (!S_ISREG(status.st_mode)) return {.path = path, .format = "", .size = 0, .mtime = 0, .pipe = true};
  return {.path = path,
          .format = "",
          .size = status.st_size,
          .mtime = std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec,
          .pipe = false};
}

std::vector<SourceFile> find_sources(const std::vector<std::string>& words, std::optional<CorpusFormat> format,
                                     const fs::path& exclude) {
  Finder finder(format, exclude);
  for (const auto& word : words) finder.add(word);
  auto sources = std::move(finder).sources();
  if (sources.empty()) fail(ErrorKind::Usage, "no files of text were named or found");
  return sources;
}

}  // namespace essh
