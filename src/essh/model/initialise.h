#pragma once
#include <cstdint>

#include "essh/model/tensors.h"
#include "essh/spectral/modal_init.h"

namespace essh {

// Initial weights: N(0, 0.02) matrices (0.02/sqrt(2 layers) for projections to the residual stream), gains one, gates
// neutral, the clock at softplus(-3), and the modal tables of `modes` in every spectral layer. A tensor's values depend
// on the seed and its name only.
template <class W>
void initialise(Parameters<W>& parameters, const ModelConfig& config, std::uint64_t seed,
                ModalInit modes = ModalInit::Hankel);

}  // namespace essh
