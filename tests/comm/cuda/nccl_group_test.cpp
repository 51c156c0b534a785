#include "essh/comm/nccl_group.h"

#include <gtest/gtest.h>

#include <numeric>

#include "essh/kernels/clear.h"

namespace essh::comm {
namespace {

// One GPU allows one rank only: it owns every shard, and kernels and collectives stay in order.
TEST(NcclGroup, OneRankKeepsItsDataAndTheOrderOfTheStream) {
  if (gpu_names().empty()) GTEST_SKIP() << "no GPU";
  auto stream = open_stream({.device = Device::Cuda});
  const auto alone = make_single_group();
  const auto nccl = make_nccl_group(*alone, stream);
  if (!nccl) GTEST_SKIP() << "no NCCL";
  const std::size_t count = 1 << 20;
  const std::vector<std::size_t> bounds = {0, count};
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 0.0f);
  const Array<float> data(Device::Cuda, count, "test");
  for (int repeat = 0; repeat < 3; ++repeat) {
    clear(stream, data.view());
    upload(stream, values, data.view());
    nccl->start_reduce_scatter_sum(data.view(), bounds).wait();
    nccl->start_all_gather(data.view(), bounds).wait();
    std::vector<float> found(count);
    download(stream, data.view(), found);
    EXPECT_EQ(found, values);
  }
}

}  // namespace
}  // namespace essh::comm
