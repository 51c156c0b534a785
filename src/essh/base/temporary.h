#pragma once
#include <filesystem>
#include <string_view>

namespace essh {

// The name NAME.tmp-PID beside NAME, under which a file or folder is written before it is renamed to NAME. The
// temporary is removed with this object, and when a signal ends the process (install_signal_handlers).
class TemporaryPath {
 public:
  // Removes left-overs of the same target first. Creates nothing itself.
  explicit TemporaryPath(const std::filesystem::path& target);
  ~TemporaryPath();
  TemporaryPath(const TemporaryPath&) = delete;
  TemporaryPath& operator=(const TemporaryPath&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // From now on a signal leaves the path alone.
  void unguard();
  // For after the rename: nothing is removed any more.
  void release();

 private:
  std::filesystem::path path_;
  int slot_ = -1;
};

// Whether a file name is that of a temporary: NAME.tmp-PID.
bool is_temporary_name(std::string_view name);

// Removes the temporaries in `folder` whose process has ended, of all targets or of the one of that name.
void remove_leftovers(const std::filesystem::path& folder, std::string_view target = {});

// Marks an open temporary file or folder as in use, also for processes of other machines that share the file system.
void mark_in_use(int descriptor);

// Removes every temporary of this process that is still guarded. Safe in a signal handler.
void remove_guarded_temporaries();

}  // namespace essh
