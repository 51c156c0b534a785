#include "essh/comm/device_group.h"

#include "essh/comm/nccl_group.h"

namespace essh::comm {
namespace {

std::span<float> as_span(Vector<float> data) {
  return {data.data, static_cast<std::size_t>(data.size)};
}

class HostArrays final : public DeviceGroup {
 public:
  explicit HostArrays(Group& group) : group_(group) {}
  Request start_reduce_scatter_sum(Vector<float> data, Bounds bounds) override {
    return group_.start_reduce_scatter_sum(as_span(data), bounds);
  }
  Request start_all_gather(Vector<float> data, Bounds bounds) override {
    return group_.start_all_gather(as_span(data), bounds);
  }

 private:
  Group& group_;
};

// A collective over a host copy; [begin, end) is copied back to the device at the end.
class StagedWork final : public Request::Work {
 public:
  StagedWork(Stream& stream, Vector<float> data, std::size_t begin, std::size_t end)
      : copy(static_cast<std::size_t>(data.size)), stream_(stream), data_(data), begin_(begin), end_(end) {}
  void wait() override {
    request.wait();
    stream_.copy(data_.data + begin_, copy.data() + begin_, (end_ - begin_) * sizeof(float));
  }
  bool done() const override { return request.done(); }
  // During stack unwinding the request abandons its group.
  void abandon() noexcept override { request = {}; }

  std::vector<float> copy;
  Request request;

 private:
  Stream& stream_;
  Vector<float> data_;
  std::size_t begin_, end_;
};

class StagedArrays final : public DeviceGroup {
 public:
  StagedArrays(Group& group, Stream& stream) : group_(group), stream_(stream) {}

  Request start_reduce_scatter_sum(Vector<float> data, Bounds bounds) override {
    auto work = std::make_unique<StagedWork>(stream_, data, own(bounds), own(bounds, 1));
    stream_.copy(work->copy.data(), data.data, work->copy.size() * sizeof(float));
    work->request = group_.start_reduce_scatter_sum(work->copy, bounds);
    return Request(std::move(work));
  }
  Request start_all_gather(Vector<float> data, Bounds bounds) override {
    auto work = std::make_unique<StagedWork>(stream_, data, 0, bounds.back());
    const std::size_t begin = own(bounds), end = own(bounds, 1);
    stream_.copy(work->copy.data() + begin, data.data + begin, (end - begin) * sizeof(float));
    work->request = group_.start_all_gather(work->copy, bounds);
    return Request(std::move(work));
  }

 private:
  std::size_t own(Bounds bounds, int after = 0) const {
    return bounds[static_cast<std::size_t>(group_.rank() + after)];
  }

  Group& group_;
  Stream& stream_;
};

}  // namespace

std::unique_ptr<DeviceGroup> make_device_group(Group& group, Stream& stream) {
  if (stream.device() == Device::Cpu || group.size() == 1) return std::make_unique<HostArrays>(group);
  if (auto nccl = make_nccl_group(group, stream)) return nccl;
  return std::make_unique<StagedArrays>(group, stream);
}

}  // namespace essh::comm
