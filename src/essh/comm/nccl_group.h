#pragma once
#include "essh/comm/device_group.h"

namespace essh::comm {

// NCCL over the ranks of a group, one GPU per rank; a collective. Null, with a log message, if this build has no NCCL
// or ranks share a GPU.
std::unique_ptr<DeviceGroup> make_nccl_group(Group& group, Stream& stream);

}  // namespace essh::comm
