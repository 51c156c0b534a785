#include "apps/essh/verbs.h"

namespace essh::verbs {

void add_all(CLI::App& app) {
  static_cast<void>(app);
}

}  // namespace essh::verbs
