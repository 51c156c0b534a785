#include "essh/train/shards.h"

#include <algorithm>
#include <limits>

namespace essh {
namespace {

// Parts start where the layout starts tensors, so that kernels may use wide loads.
constexpr Index kAlignment = 64;
constexpr Index kSmallestBucket = 1 << 10, kLargestBucket = 1 << 22;

Index bucket_size(const ParameterLayout& layout, int ranks) {
  if (ranks == 1) return layout.size();
  // Several even for small models, so that some sums run beside the backward pass.
  return std::clamp(layout.size() / 16, kSmallestBucket, kLargestBucket) / kAlignment * kAlignment;
}

}  // namespace

Shards::Shards(const ParameterLayout& layout, comm::Group& group, Stream& stream)
    : group_(group), stream_(stream), arrays_(comm::make_device_group(group, stream)) {
  const Index limit = bucket_size(layout, group.size());
  // starts[layer + 1]: from where on no tensor waits for a layer before this one.
  std::vector<Index> starts;
  Index waits_for = std::numeric_limits<Index>::max();
  for (std::size_t tensor = layout.tensors().size(); tensor-- > 0;) {
    waits_for = std::min(waits_for, layout.tensors()[tensor].layer);
    starts.resize(std::max(starts.size(), static_cast<std::size_t>(waits_for + 2)), layout.size());
    starts[static_cast<std::size_t>(waits_for + 1)] = layout.offset(tensor);
  }
  Index start = layout.size(), end = layout.size();
  for (Index layer = static_cast<Index>(starts.size()) - 2; layer >= -1; --layer) {
    start = std::min(start, starts[static_cast<std::size_t>(layer + 1)]);
    while (end - start >= limit || (layer == -1 && end > start)) {
      const Index begin = std::max(start, end - limit);
      auto bounds = comm::even_bounds(static_cast<std::size_t>((end - begin) / kAlignment), group.size());
      for (auto& bound : bounds) bound *= kAlignment;
      const auto part = [&](int rank) { return begin + static_cast<Index>(bounds[static_cast<std::size_t>(rank)]); };
      const Index own_begin = part(group.rank()), own_end = part(group.rank() + 1);
      buckets_.push_back({begin, end, layer, bounds, own_begin, own_end, held_});
      held_ += own_end - own_begin;
      end = begin;
    }
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

Vector<const float> Shards::whole(Vector<const float> parts, Index begin, Index end, Arena& arena) {
  if (alone()) return parts.middle(begin, end - begin);
  const auto values = arena.vector<float>(end - begin);
  for (const auto& bucket : buckets_) {
    const Index from = std::max(begin, bucket.begin), to = std::min(end, bucket.end);
    if (from >= to) continue;
    const Index own_from = std::max(from, bucket.own_begin), own_to = std::min(to, bucket.own_end);
    if (own_from < own_to)
      stream_.copy(values.data + own_from - begin, parts.data + place(bucket, own_from),
                   static_cast<std::size_t>(own_to - own_from) * sizeof(float));
    const auto bounds = comm::slice_bounds(bucket.bounds, static_cast<std::size_t>(from - bucket.begin),
                                           static_cast<std::size_t>(to - bucket.begin));
    under_way_.push_back(arrays_->start_all_gather(values.middle(from - begin, to - from), bounds));
  }
  wait();
  return values;
}

void Shards::keep(Vector<const float> values, Index begin, Index end, Vector<float> parts) {
  for (const auto& bucket : buckets_) {
    const Index from = std::max(begin, bucket.own_begin), to = std::min(end, bucket.own_end);
    if (from < to)
      stream_.copy(parts.data + place(bucket, from), values.data + from - begin,
                   static_cast<std::size_t>(to - from) * sizeof(float));
  }
}

}  // namespace essh
