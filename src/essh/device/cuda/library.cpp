#include "essh/device/cuda/library.h"

#include <dlfcn.h>

#include "essh/base/error.h"

namespace essh::cuda {

Library::Library(const std::vector<std::string>& files, const char* purpose) {
  std::string reason;
  for (const auto& file : files) {
    handle_ = dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL);
    if (handle_ != nullptr) {
      file_ = file;
      return;
    }
    if (reason.empty()) reason = dlerror();
  }
  fail(ErrorKind::Device,
       "{} needs a library that cannot be loaded ({}): install it or add its folder to LD_LIBRARY_PATH", purpose,
       reason);
}

Library::Symbol Library::find(const char* name) const {
  void* const address = dlsym(handle_, name);
  if (address == nullptr)
    fail(ErrorKind::Device, "{} has no function {}: another version than this build expects", file_, name);
  return Symbol(address);
}

}  // namespace essh::cuda
