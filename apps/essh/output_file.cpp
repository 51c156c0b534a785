#include "apps/essh/output_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "essh/base/error.h"
#include "essh/base/file.h"

namespace essh::verbs {
namespace fs = std::filesystem;
namespace {

void check_parent(const fs::path& path) {
  const auto parent = path.has_parent_path() ? path.parent_path() : fs::path(".");
  make_folder(parent);
  if (::access(parent.c_str(), W_OK | X_OK) != 0)
    fail(ErrorKind::BadFile, "{}: cannot be written ({})", path.string(), std::strerror(errno));
}

}  // namespace

void check_output_file(const fs::path& path) {
  if (path.empty()) return;
  if (fs::is_directory(path) || !path.has_filename())
    fail(ErrorKind::Usage, "{}: a folder; name a file in it", path.string());
  check_parent(path);
}

void check_new_file(const fs::path& path, bool force) {
  check_output_file(path);
  if (!force && fs::exists(path))
    fail(ErrorKind::Usage, "{}: exists already; choose another name, or --force to replace it", path.string());
}

void check_new_folder(const fs::path& path, bool force) {
  if (fs::exists(path) && !fs::is_directory(path)) fail(ErrorKind::Usage, "{}: a file; name a folder", path.string());
  if (!force && fs::is_directory(path) && !fs::is_empty(path))
    fail(ErrorKind::Usage, "{}: exists already; choose another name, or --force to replace it", path.string());
  check_parent(path);
}

}  // namespace essh::verbs
