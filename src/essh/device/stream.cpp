#include "essh/device/stream.h"

#include <charconv>
#include <cstring>
#if ESSH_WITH_CUDA
#include "essh/device/cuda/profile.h"
#endif

namespace essh {

void Stream::copy(void* to, const void* from, std::size_t bytes) {
#if ESSH_WITH_CUDA
  if (auto* gpu = cuda()) return gpu->copy(to, from, bytes);
#endif
  if (bytes > 0) std::memcpy(to, from, bytes);
}

void Stream::wait() {
#if ESSH_WITH_CUDA
  if (auto* gpu = cuda()) gpu->wait();
#endif
}

std::unique_lock<std::mutex> Stream::acquire() {
  std::unique_lock lock(*mutex_);
#if ESSH_WITH_CUDA
  if (auto* gpu = cuda()) gpu->activate();
#endif
  return lock;
}

std::string Stream::description() {
#if ESSH_WITH_CUDA
  if (auto* gpu = cuda()) return gpu->description();
#endif
  return fmt::format("CPU, {} threads", cpu()->pool().threads());
}

double Stream::free_memory_share() {
#if ESSH_WITH_CUDA
  if (auto* gpu = cuda()) {
    gpu->activate();
    const auto memory = cuda::device_memory();
    return static_cast<double>(memory.free) / static_cast<double>(memory.total);
  }
#endif
  return 1;
}

std::map<std::string, std::string>& Stream::choices() {
#if ESSH_WITH_CUDA
  if (auto* gpu = cuda()) return gpu->choices();
#endif
  return nothing_;
}

bool Stream::tunes_launches() {
#if ESSH_WITH_CUDA
  if (auto* gpu = cuda()) return gpu->tunes_launches();
#endif
  return false;
}

void Stream::set_tunes_launches(bool tunes) {
#if ESSH_WITH_CUDA
  if (auto* gpu = cuda()) return gpu->set_tunes_launches(tunes);
#endif
  static_cast<void>(tunes);
}

void Stream::set_own_products(bool own) {
#if ESSH_WITH_CUDA
  if (auto* gpu = cuda()) return gpu->set_own_products(own);
#endif
  static_cast<void>(own);
}

cuda::Stream* Stream::cuda() {
#if ESSH_WITH_CUDA
  return device_.index() == 1 ? std::get<1>(device_).get() : nullptr;
#else
  return nullptr;
#endif
}

bool Stream::records() {
#if ESSH_WITH_CUDA
  if (auto* gpu = cuda()) return gpu->profile() == nullptr;
#endif
  return false;
}

void Recording::replay(Stream& stream) {
#if ESSH_WITH_CUDA
  static_cast<cuda::Graph*>(graph_.get())->replay(*stream.cuda());
#else
  static_cast<void>(stream);
#endif
}

void Recording::record(Stream& stream, const std::function<void()>& body) {
#if ESSH_WITH_CUDA
  graph_ = std::make_shared<cuda::Graph>(*stream.cuda(), body);
  replay(stream);
#else
  static_cast<void>(stream);
  body();
#endif
}

#if ESSH_WITH_CUDA
ProfiledScope::ProfiledScope(Stream& stream) : stream_(stream) {
  auto* gpu = stream.cuda();
  if (!gpu) return;
  auto profile = std::make_shared<cuda::Profile>(*gpu);
  gpu->set_profile(profile.get());
  profile_ = profile;
}

ProfiledScope::~ProfiledScope() {
  if (profile_) stream_.cuda()->set_profile(nullptr);
}

std::vector<ProfiledScope::Line> ProfiledScope::lines() {
  std::vector<Line> list;
  if (!profile_) return list;
  for (const auto& line : static_cast<cuda::Profile*>(profile_.get())->lines())
    list.push_back({line.name, line.calls, line.milliseconds});
  return list;
}
#else
ProfiledScope::ProfiledScope(Stream& stream) : stream_(stream) {}
ProfiledScope::~ProfiledScope() = default;
std::vector<ProfiledScope::Line> ProfiledScope::lines() {
  static_cast<void>(stream_);
  return {};
}
#endif

DeviceChoice parse_device(std::string_view name) {
  if (name == "cpu") return {};
#if ESSH_WITH_CUDA
  const int count = cuda::device_count();
#else
  const int count = 0;
#endif
  if (name == "auto") return {.device = count > 0 ? Device::Cuda : Device::Cpu};
  int index = 0;
  const auto number = name.starts_with("cuda:") ? name.substr(5) : std::string_view("0");
  const auto [end, status] = std::from_chars(number.data(), number.data() + number.size(), index);
  if ((name != "cuda" && !name.starts_with("cuda:")) || status != std::errc{} || end != number.data() + number.size() ||
      index < 0)
    fail(ErrorKind::Usage, "device {}: choose cpu, cuda, cuda:N or auto", name);
#if !ESSH_WITH_CUDA
  fail(ErrorKind::Unsupported, "device {}: this build has no CUDA; build with `cmake --preset cuda`", name);
#endif
  if (count == 0) fail(ErrorKind::Device, "device {}: no GPU or no driver on this machine; use cpu", name);
  if (index >= count) fail(ErrorKind::Usage, "device {}: the last GPU is cuda:{}", name, count - 1);
  return {.device = Device::Cuda, .index = index};
}

Stream open_stream(DeviceChoice choice, int threads) {
#if ESSH_WITH_CUDA
  if (choice.device == Device::Cuda) return Stream(std::make_unique<cuda::Stream>(choice.index));
#endif
  ESSH_ASSERT(choice.device == Device::Cpu);
  return cpu_stream(threads);
}

std::vector<std::string> gpu_names() {
#if ESSH_WITH_CUDA
  return cuda::device_names();
#else
  return {};
#endif
}

}  // namespace essh
