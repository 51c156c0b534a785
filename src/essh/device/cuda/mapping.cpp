#include "essh/device/cuda/mapping.h"

#include <cuda.h>

#include <algorithm>

#include "essh/device/cuda/check.h"
#include "essh/device/cuda/library.h"
#include "essh/device/cuda/stream.h"

namespace essh::cuda {
namespace {

// At most this much is mapped ahead, so that a growing pass does not map memory for every matrix.
constexpr std::size_t kLargestStep = std::size_t{64} << 20;

struct Driver {
  Library library{{"libcuda.so.1"}, "a CUDA device"};
  decltype(&cuMemAddressReserve) reserve = library.find("cuMemAddressReserve");
  decltype(&cuMemAddressFree) free = library.find("cuMemAddressFree");
  decltype(&cuMemCreate) create = library.find("cuMemCreate");
  decltype(&cuMemRelease) release = library.find("cuMemRelease");
  decltype(&cuMemMap) map = library.find("cuMemMap");
  decltype(&cuMemUnmap) unmap = library.find("cuMemUnmap");
  decltype(&cuMemSetAccess) set_access = library.find("cuMemSetAccess");
  decltype(&cuMemGetAllocationGranularity) granularity = library.find("cuMemGetAllocationGranularity");
  decltype(&cuDeviceGetAttribute) attribute = library.find("cuDeviceGetAttribute");
};
const Driver& driver() {
  static const Driver loaded;
  return loaded;
}

CUmemLocation location_of(int device) {
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device;
  return location;
}

CUmemAllocationProp memory_of(int device) {
  CUmemAllocationProp memory{};
  memory.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  memory.location = location_of(device);
  return memory;
}

std::size_t round_up(std::size_t bytes, std::size_t to) {
  return (bytes + to - 1) / to * to;
}

}  // namespace

std::unique_ptr<Mapping> Mapping::reserve() {
  int device = 0, supported = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  std::size_t granularity = 0;
  // A runtime call, which creates the context.
  const auto total = device_memory().total;
  const auto memory = memory_of(device);
  if (driver().attribute(&supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device) != CUDA_SUCCESS ||
      supported == 0 ||
      driver().granularity(&granularity, &memory, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) != CUDA_SUCCESS)
    return nullptr;
  std::unique_ptr<Mapping> mapping(new Mapping(device, granularity));
  const auto range = round_up(total, granularity);
  if (driver().reserve(&mapping->address_, range, 0, 0, 0) != CUDA_SUCCESS) return nullptr;
  mapping->reserved_ = range;
  return mapping;
}

Mapping::~Mapping() {
  if (reserved_ == 0) return;
  if (bytes_ > 0) {
    cudaDeviceSynchronize();
    driver().unmap(address_, bytes_);
  }
  driver().free(address_, reserved_);
}

void Mapping::grow(std::size_t bytes, const char* purpose) {
  if (bytes <= bytes_) return;
  const auto ahead = std::min(bytes_ / 8, kLargestStep);
  const auto step = round_up(std::max(bytes - bytes_, ahead), granularity_);
  if (step > reserved_ - bytes_) fail_for_memory(step, purpose);
  const auto end = address_ + bytes_;
  const auto memory = memory_of(device_);
  CUmemGenericAllocationHandle handle = 0;
  const auto status = driver().create(&handle, step, &memory, 0);
  if (status == CUDA_ERROR_OUT_OF_MEMORY) fail_for_memory(step, purpose);
  if (status != CUDA_SUCCESS) fail(ErrorKind::Device, "{}: cuMemCreate failed ({})", purpose, static_cast<int>(status));
  const CUmemAccessDesc access{location_of(device_), CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  const bool mapped = driver().map(end, step, 0, handle, 0) == CUDA_SUCCESS;
  // The mapping keeps the memory alive.
  driver().release(handle);
  if (!mapped) fail(ErrorKind::Device, "{}: cuMemMap failed", purpose);
  if (driver().set_access(end, step, &access, 1) != CUDA_SUCCESS) {
    driver().unmap(end, step);
    fail(ErrorKind::Device, "{}: cuMemSetAccess failed", purpose);
  }
  bytes_ += step;
}

}  // namespace essh::cuda
