#include "essh/device/cpu/stream.h"

namespace essh::cpu {

Stream::Stream(int threads) : pool_(threads) {
  for (int thread = 0; thread < pool_.threads(); ++thread) scratch_.push_back(std::make_unique<Arena>(Device::Cpu));
}

}  // namespace essh::cpu
