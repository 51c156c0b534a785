#pragma once
#include <filesystem>
#include <string_view>

namespace essh {

// The name NAME.tmp-PID under which a file or folder is written before it is renamed to NAME. The temporary is removed
// by the destructor, and when a signal ends the process (install_signal_handlers).
class TemporaryPath {
 public:
  // Removes leftovers of the same target. Creates nothing.
  explicit TemporaryPath(const std::filesystem::path& target);
  ~TemporaryPath();
  TemporaryPath(const TemporaryPath&) = delete;
  TemporaryPath& operator=(const TemporaryPath&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // A signal no longer removes the path.
  void unguard();
  // Call after the rename: the path is no longer removed.
  void release();

 private:
  std::filesystem::path path_;
  int slot_ = -1;
};

// Whether a file name is that of a temporary: NAME.tmp-PID.
bool is_temporary_name(std::string_view name);

// Removes temporaries in `folder` whose process has ended, of all targets or of one.
void remove_leftovers(const std::filesystem::path& folder, std::string_view target = {});

// Marks an open temporary file or folder as in use, also for processes of other machines that share the file system.
void mark_in_use(int descriptor);

// Removes every temporary of this process that is still guarded. Safe in a signal handler.
void remove_guarded_temporaries();

}  // namespace essh
