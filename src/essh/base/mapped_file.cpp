#include "essh/base/mapped_file.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include "essh/base/error.h"
#include "essh/base/file.h"
#include "essh/base/temporary.h"

namespace essh {

// An entry of the list that the signal handler searches. Entries are never freed, only reused.
struct Mapping {
  std::atomic<std::uintptr_t> begin{0};  // 0: unused
  std::atomic<std::size_t> size{0};
  std::string message;
  Mapping* next = nullptr;
};

namespace {

std::atomic<Mapping*> mappings{nullptr};
std::mutex changing;
struct sigaction before {};

void on_bus_error(int, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  for (const auto* entry = mappings.load(); entry != nullptr; entry = entry->next) {
    const auto begin = entry->begin.load();
    if (begin == 0 || address < begin || address - begin >= entry->size.load()) continue;
    const auto written = ::write(STDERR_FILENO, entry->message.data(), entry->message.size());
    static_cast<void>(written);
    remove_guarded_temporaries();
    ::_exit(exit_code(ErrorKind::BadFile));
  }
  // Not in a mapped file: the faulting instruction runs again under the previous handler.
  ::sigaction(SIGBUS, &before, nullptr);
}

Mapping* remember(std::span<const std::byte> bytes, const std::string& name) {
  const std::lock_guard lock(changing);
  if (mappings.load() == nullptr) {
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO;
    ::sigaction(SIGBUS, &action, &before);
  }
  auto* entry = mappings.load();
  while (entry != nullptr && entry->begin.load() != 0) entry = entry->next;
  const bool fresh = entry == nullptr;
  if (fresh) entry = new Mapping;
  entry->message = fmt::format(
      "essh: {}: cannot be read any more: it became shorter while it was in use, or its disk fails; restore it and "
      "start again\n",
      name);
  entry->size = bytes.size();
  entry->begin = reinterpret_cast<std::uintptr_t>(bytes.data());
  if (fresh) {
    entry->next = mappings.load();
    mappings = entry;
  }
  return entry;
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  const InputFile file(path);
  if (file.size() == 0) return;
  void* address = ::mmap(nullptr, file.size(), PROT_READ, MAP_SHARED, file.descriptor(), 0);
  if (address == MAP_FAILED) {
    fail(ErrorKind::BadFile, "{}: cannot map {} bytes: {}", path.string(), file.size(), std::strerror(errno));
  }
  bytes_ = {static_cast<const std::byte*>(address), file.size()};
  mapping_ = remember(bytes_, path.string());
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : bytes_(std::exchange(other.bytes_, {})), mapping_(std::exchange(other.mapping_, nullptr)) {}

MappedFile::~MappedFile() {
  if (bytes_.empty()) return;
  mapping_->begin = 0;
  ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace essh
