#pragma once
#include <memory>

#include "essh/comm/group.h"
#include "essh/device/stream.h"

namespace essh::comm {

// Collectives of a group over large arrays in device memory, ordered with the kernels of the stream: a collective sees
// the results of kernels launched before it, and kernels launched after wait() see its result. The CPU uses the group
// itself; GPUs use NCCL, or host memory without NCCL.
class DeviceGroup {
 public:
  DeviceGroup() = default;
  DeviceGroup(const DeviceGroup&) = delete;
  DeviceGroup& operator=(const DeviceGroup&) = delete;
  virtual ~DeviceGroup() = default;

  // As in Group, except that NCCL chooses the order of additions.
  virtual Request start_reduce_scatter_sum(Vector<float> data, Bounds bounds) = 0;
  virtual Request start_all_gather(Vector<float> data, Bounds bounds) = 0;
};

// A collective. `group` and `stream` must outlive the result.
std::unique_ptr<DeviceGroup> make_device_group(Group& group, Stream& stream);

}  // namespace essh::comm
