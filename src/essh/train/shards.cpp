#include "essh/train/shards.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <ranges>

namespace essh {
namespace {

// Shares start where the layout may start tensors, so that kernels may use wide loads.
constexpr Index kAlignment = 64;
constexpr Index kSmallestBucket = 1 << 10, kLargestBucketPerRank = 1 << 21;

// Elements from which on a bucket is closed.
Index bucket_size(const ParameterLayout& layout, int ranks) {
  if (ranks == 1) return layout.size();
  // Several even for small models, so that some sums run beside the backward pass.
  return std::clamp(layout.size() / 16, kSmallestBucket, ranks * kLargestBucketPerRank);
}

// The nearest place to `position` where shares may meet.
Index nearest_cut(const ParameterLayout& layout, Index position) {
  std::size_t tensor = 0;
  while (tensor + 1 < layout.tensors().size() && layout.offset(tensor + 1) <= position) ++tensor;
  const auto& spec = layout.tensors()[tensor];
  const Index begin = layout.offset(tensor), end = tensor_end(layout, tensor);
  const Index step = spec.role == Role::Embedding ? std::lcm(spec.cols, kAlignment) : end - begin;
  return std::min(begin + (position - begin + step / 2) / step * step, end);
}

}  // namespace

Index tensor_end(const ParameterLayout& layout, std::size_t tensor) {
  return tensor + 1 < layout.tensors().size() ? layout.offset(tensor + 1) : layout.size();
}

Shards::Shards(const ParameterLayout& layout, comm::Group& group, Stream& stream)
    : group_(group), stream_(stream), arrays_(comm::make_device_group(group, stream)) {
  const Index limit = bucket_size(layout, group.size());
  Index end = layout.size(), layer = std::numeric_limits<Index>::max();
  for (std::size_t tensor = layout.tensors().size(); tensor-- > 0;) {
    layer = std::min(layer, layout.tensors()[tensor].layer);
    const Index begin = layout.offset(tensor);
    if (end - begin < limit && tensor > 0) continue;
    buckets_.push_back({.begin = begin, .end = end, .layer = layer});
    end = begin;
  }
  cut_shares(layout);
}

void Shards::cut_shares(const ParameterLayout& layout) {
  const auto ranks = static_cast<std::size_t>(group_.size()), rank = static_cast<std::size_t>(group_.rank());
  std::vector<double> held(ranks), lacks(ranks);
  // From the front of the array, where the largest tensor is: the matrices behind it even out what it leaves.
  for (auto& bucket : buckets_ | std::views::reverse) {
    // A rank gets as much of the bucket as it lacks of an even share of everything up to here.
    const double level = static_cast<double>(bucket.end) / static_cast<double>(ranks);
    for (std::size_t r = 0; r < ranks; ++r) lacks[r] = std::max(0.0, level - held[r]);
    const double all = std::accumulate(lacks.begin(), lacks.end(), 0.0);
    bucket.bounds = {0};
    double given = 0;
    for (std::size_t r = 0; r < ranks; ++r) {
      given += lacks[r] / all * static_cast<double>(bucket.end - bucket.begin);
      const Index cut = r + 1 < ranks ? nearest_cut(layout, bucket.begin + static_cast<Index>(given)) : bucket.end;
      bucket.bounds.push_back(static_cast<std::size_t>(cut - bucket.begin));
      held[r] += static_cast<double>(bucket.bounds[r + 1] - bucket.bounds[r]);
    }
    bucket.own_begin = bucket.begin + static_cast<Index>(bucket.bounds[rank]);
    bucket.own_end = bucket.begin + static_cast<Index>(bucket.bounds[rank + 1]);
  }
  for (auto& bucket : buckets_) {
    bucket.held = held_;
    held_ += bucket.own_end - bucket.own_begin;
  }
}

void Shards::start_sums(Vector<float> gradient, Index layer) {
  for (; summed_ < buckets_.size() && buckets_[summed_].layer >= layer; ++summed_) {
    const auto& bucket = buckets_[summed_];
    under_way_.push_back(
        arrays_->start_reduce_scatter_sum(gradient.middle(bucket.begin, bucket.end - bucket.begin), bucket.bounds));
  }
}

void Shards::start_gather(Vector<float> values, const Bucket& bucket) {
  under_way_.push_back(
      arrays_->start_all_gather(values.middle(bucket.begin, bucket.end - bucket.begin), bucket.bounds));
}

void Shards::wait() {
  for (auto& request : under_way_) request.wait();
  under_way_.clear();
  summed_ = 0;
}

Vector<const float> Shards::whole(Vector<const float> shares, Index begin, Index end, Arena& arena) {
  if (alone()) return shares.middle(begin, end - begin);
  const auto values = arena.vector<float>(end - begin);
  for (const auto& bucket : buckets_) {
    const Index from = std::max(begin, bucket.begin), to = std::min(end, bucket.end);
    if (from >= to) continue;
    const Index own_from = std::max(from, bucket.own_begin), own_to = std::min(to, bucket.own_end);
    if (own_from < own_to)
      stream_.copy(values.data + own_from - begin, shares.data + place(bucket, own_from),
                   static_cast<std::size_t>(own_to - own_from) * sizeof(float));
    const auto bounds = comm::slice_bounds(bucket.bounds, static_cast<std::size_t>(from - bucket.begin),
                                           static_cast<std::size_t>(to - bucket.begin));
    under_way_.push_back(arrays_->start_all_gather(values.middle(from - begin, to - from), bounds));
  }
  wait();
  return values;
}

void Shards::keep(Vector<const float> values, Index begin, Index end, Vector<float> shares) {
  for (const auto& bucket : buckets_) {
    const Index from = std::max(begin, bucket.own_begin), to = std::min(end, bucket.own_end);
    if (from < to)
      stream_.copy(shares.data + place(bucket, from), values.data + from - begin,
                   static_cast<std::size_t>(to - from) * sizeof(float));
  }
}

}  // namespace essh
