#include "essh/device/cuda/profile.h"

#include <algorithm>

#include "essh/device/cuda/check.h"

namespace essh::cuda {

Profile::~Profile() {
  for (const auto& launch : launches_) {
    cudaEventDestroy(launch.start);
    if (launch.end) cudaEventDestroy(launch.end);
  }
}

CUevent_st* Profile::mark() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreate(&event), "profile");
  check(cudaEventRecord(event, stream_.handle()), "profile");
  return event;
}

void Profile::begin(const char* name) {
  launches_.push_back({name, mark(), nullptr});
}

void Profile::end() {
  launches_.back().end = mark();
}

void Profile::add_part(const std::string& name, double milliseconds) {
  auto& line = parts_[name];
  line.name = name;
  ++line.calls;
  line.milliseconds += milliseconds;
}

std::vector<Profile::Line> Profile::lines() {
  stream_.wait();
  auto by_name = parts_;
  for (const auto& launch : launches_) {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, launch.start, launch.end), "profile");
    auto& line = by_name[launch.name];
    line.name = launch.name;
    ++line.calls;
    line.milliseconds += static_cast<double>(milliseconds);
  }
  std::vector<Line> lines;
  for (const auto& [name, line] : by_name) lines.push_back(line);
  std::ranges::sort(lines, [](const Line& a, const Line& b) { return a.milliseconds > b.milliseconds; });
  return lines;
}

}  // namespace essh::cuda
