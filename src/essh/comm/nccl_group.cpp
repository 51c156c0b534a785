#include "essh/comm/nccl_group.h"

#include "essh/base/log.h"

#if ESSH_HAVE_NCCL
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <vector>

#include "essh/base/error.h"
#include "essh/device/cuda/check.h"
#include "essh/device/cuda/library.h"
#include "essh/device/cuda/stream.h"

namespace essh::comm {
namespace {

struct Nccl {
  cuda::Library library{{ESSH_NCCL, ESSH_NCCL_FOLDER "/" ESSH_NCCL}, "gradients from GPU to GPU"};
  decltype(&ncclGetErrorString) error_string = library.find("ncclGetErrorString");
  decltype(&ncclGetUniqueId) unique_id = library.find("ncclGetUniqueId");
  decltype(&ncclCommInitRank) start = library.find("ncclCommInitRank");
  decltype(&ncclCommAbort) abort = library.find("ncclCommAbort");
  decltype(&ncclGroupStart) group_start = library.find("ncclGroupStart");
  decltype(&ncclGroupEnd) group_end = library.find("ncclGroupEnd");
  decltype(&ncclReduce) reduce = library.find("ncclReduce");
  decltype(&ncclBroadcast) broadcast = library.find("ncclBroadcast");
};
const Nccl& nccl() {
  static const Nccl loaded;
  return loaded;
}

void check_nccl(ncclResult_t status, const char* what) {
  if (status != ncclSuccess) fail(ErrorKind::Device, "{}: NCCL: {}", what, nccl().error_string(status));
}

class Event {
 public:
  Event() { cuda::check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  // Work launched on `later` from now on runs after all work already launched on `earlier`.
  void order(cudaStream_t earlier, cudaStream_t later) {
    record(earlier);
    hold(later);
  }
  void record(cudaStream_t stream) { cuda::check(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  void hold(cudaStream_t stream) { cuda::check(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent"); }
  bool passed() const { return cudaEventQuery(event_) == cudaSuccess; }

 private:
  cudaEvent_t event_ = nullptr;
};

class NcclWork final : public Request::Work {
 public:
  NcclWork(cudaStream_t communication, cudaStream_t kernels) : kernels_(kernels) { end_.record(communication); }
  // The kernels wait, the host does not.
  void wait() override { end_.hold(kernels_); }
  bool done() const override { return end_.passed(); }
  void abandon() noexcept override {}

 private:
  Event end_;
  cudaStream_t kernels_;
};

// Collectives run on their own stream, concurrently with the kernels.
class NcclGroup final : public DeviceGroup {
 public:
  NcclGroup(Group& group, cuda::Stream& kernels)
      : rank_(group.rank()), size_(group.size()), kernels_(kernels.handle()) {
    ncclUniqueId id{};
    if (rank_ == 0) check_nccl(nccl().unique_id(&id), "starting NCCL");
    group.broadcast(std::as_writable_bytes(std::span(&id, 1)), 0);
    check_nccl(nccl().start(&communicator_, size_, id, rank_), "starting NCCL");
    cuda::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  ~NcclGroup() override {
    nccl().abort(communicator_);
    cudaStreamDestroy(stream_);
  }

  // Shards differ in length, which NCCL's reduce-scatter and all-gather do not allow: one call per shard.
  Request start_reduce_scatter_sum(Vector<float> data, Bounds bounds) override {
    return start(
        "reduce_scatter_sum", bounds,
        [&](float* part, std::size_t count, int root) {
          return nccl().reduce(part, part, count, ncclFloat, ncclSum, root, communicator_, stream_);
        },
        data);
  }
  Request start_all_gather(Vector<float> data, Bounds bounds) override {
    return start(
        "all_gather", bounds,
        [&](float* part, std::size_t count, int root) {
          return nccl().broadcast(part, part, count, ncclFloat, root, communicator_, stream_);
        },
        data);
  }

 private:
  template <class Call>
  Request start(const char* what, Bounds bounds, const Call& call, Vector<float> data) {
    ready_.order(kernels_, stream_);
    check_nccl(nccl().group_start(), what);
    for (int r = 0; r < size_; ++r) {
      const auto begin = bounds[static_cast<std::size_t>(r)], end = bounds[static_cast<std::size_t>(r) + 1];
      if (begin < end) check_nccl(call(data.data + begin, end - begin, r), what);
    }
    check_nccl(nccl().group_end(), what);
    return Request(std::make_unique<NcclWork>(stream_, kernels_));
  }

  int rank_, size_;
  cudaStream_t kernels_, stream_ = nullptr;
  ncclComm_t communicator_ = nullptr;
  Event ready_;
};

// Whether two ranks on one machine use the same GPU.
bool shares_gpu(Group& group) {
  int device = 0;
  cuda::check(cudaGetDevice(&device), "cudaGetDevice");
  cudaDeviceProp properties{};
  cuda::check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  const std::span<const std::byte> own = std::as_bytes(std::span(properties.uuid.bytes));
  std::vector<std::byte> all(own.size() * static_cast<std::size_t>(group.size()));
  std::copy(own.begin(), own.end(), all.begin() + static_cast<std::ptrdiff_t>(own.size()) * group.rank());
  std::vector<std::size_t> bounds;
  for (int r = 0; r <= group.size(); ++r) bounds.push_back(own.size() * static_cast<std::size_t>(r));
  group.all_gather(all, bounds);
  for (std::size_t a = 0; a < all.size(); a += own.size()) {
    for (std::size_t b = 0; b < a; b += own.size()) {
      if (std::equal(all.begin() + static_cast<std::ptrdiff_t>(a),
                     all.begin() + static_cast<std::ptrdiff_t>(a + own.size()),
                     all.begin() + static_cast<std::ptrdiff_t>(b)))
        return true;
    }
  }
  return false;
}

// Whether every rank can load the library: if one could not, the others would wait for it.
bool everywhere(Group& group) {
  std::int64_t missing = 0;
  try {
    nccl();
  } catch (const Error& error) {
    log::warn("{}; until then gradients go through host memory", error.what());
    missing = 1;
  }
  return group.all_reduce_sum(missing) == 0;
}

}  // namespace

std::unique_ptr<DeviceGroup> make_nccl_group(Group& group, Stream& stream) {
  cuda::Stream* const gpu = stream.cuda();
  if (gpu == nullptr) return nullptr;
  if (shares_gpu(group)) {
    log::warn("ranks share a GPU: gradients go through host memory");
    return nullptr;
  }
  if (!everywhere(group)) return nullptr;
  return std::make_unique<NcclGroup>(group, *gpu);
}

}  // namespace essh::comm

#else

namespace essh::comm {

std::unique_ptr<DeviceGroup> make_nccl_group(Group&, Stream&) {
  log::warn("this build has no NCCL: gradients go through host memory");
  return nullptr;
}

}  // namespace essh::comm

#endif
