#include "essh/base/error.h"

namespace essh {

int exit_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::Usage:
      return 2;
    case ErrorKind::BadFile:
      return 3;
    case ErrorKind::Unsupported:
      return 4;
    case ErrorKind::OutOfMemory:
      return 5;
    case ErrorKind::Device:
      return 6;
    case ErrorKind::Interrupted:
      return 75;
    case ErrorKind::Internal:
      return 70;
  }
  return 70;
}

void assertion_failed(const char* condition, const char* file, int line) {
  throw Error(ErrorKind::Internal,
              fmt::format("{}:{}: internal check failed: {}; please report it", file, line, condition));
}

}  // namespace essh
