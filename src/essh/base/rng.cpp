#include "essh/base/rng.h"

namespace essh {

// Not in the header: tests without optimisation call it for every number they draw.
void Rng::refill() {
  block_ = random_block(seed_, stream_, position_ / 4);
  filled_ = true;
}

}  // namespace essh
