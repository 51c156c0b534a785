#pragma once
#include "essh/comm/device_group.h"

namespace essh::comm {

// The ranks of a group, each with a GPU of its own, by NCCL; a collective of the group. Null, after a word in the log,
// where this build has no NCCL or ranks share a GPU, which NCCL refuses.
std::unique_ptr<DeviceGroup> make_nccl_group(Group& group, Stream& stream);

}  // namespace essh::comm
