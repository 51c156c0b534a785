#include "apps/essh/verbs.h"

namespace essh::verbs {

void add_all(CLI::App& app) {
  add_prepare(app);
}

}  // namespace essh::verbs
