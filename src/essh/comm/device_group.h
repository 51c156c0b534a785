#pragma once
#include <memory>

#include "essh/comm/group.h"
#include "essh/device/stream.h"

namespace essh::comm {

// The collectives of a group over large arrays in the memory of a device, in order with the kernels of its stream: what
// was launched before a start is seen by it, what is launched after wait() sees its result. On the CPU they are the
// group's own; between GPUs NCCL's, or through host memory where there is no NCCL.
class DeviceGroup {
 public:
  DeviceGroup() = default;
  DeviceGroup(const DeviceGroup&) = delete;
  DeviceGroup& operator=(const DeviceGroup&) = delete;
  virtual ~DeviceGroup() = default;

  // As Group has them. The sums of NCCL are added in an order of its own.
  virtual Request start_reduce_scatter_sum(Vector<float> data, Bounds bounds) = 0;
  virtual Request start_all_gather(Vector<float> data, Bounds bounds) = 0;
};

// A collective of the group. Both outlive what is made.
std::unique_ptr<DeviceGroup> make_device_group(Group& group, Stream& stream);

}  // namespace essh::comm
