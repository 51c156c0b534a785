#include <fmt/core.h>

#include <cstdio>
#include <cstdlib>

#include "essh/base/error.h"
#include "essh/comm/group.h"

namespace essh::comm {
namespace {

void check_bounds(Bounds bounds, std::size_t count) {
  ESSH_ASSERT(bounds.size() == 2 && bounds[0] == 0 && bounds[1] == count);
}

class SingleGroup final : public Group {
 public:
  SingleGroup() : Group(0, 1) {}

  Request start_all_reduce_sum(std::span<float>) override { return {}; }
  Request start_reduce_scatter_sum(std::span<float> data, Bounds bounds) override {
    check_bounds(bounds, data.size());
    return {};
  }
  Request start_all_gather(std::span<float> data, Bounds bounds) override {
    check_bounds(bounds, data.size());
    return {};
  }
  void all_gather(std::span<std::byte> data, Bounds bounds) override { check_bounds(bounds, data.size()); }
  void all_reduce_sum(std::span<double>) override {}
  std::int64_t all_reduce_sum(std::int64_t value) override { return value; }
  double all_reduce_max(double value) override { return value; }
  void broadcast(std::span<std::byte>, int root) override { ESSH_ASSERT(root == 0); }
  void barrier() override {}
  void close() override {}

  void abort_all(std::string_view message, int code) override {
    fmt::print(stderr, "essh: {}\n", message);
    std::fflush(nullptr);
    std::_Exit(code);
  }
};

}  // namespace

std::unique_ptr<Group> make_single_group() {
  return std::make_unique<SingleGroup>();
}

}  // namespace essh::comm
