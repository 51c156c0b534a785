#pragma once
#include <vector>

#include "essh/comm/device_group.h"
#include "essh/model/tensors.h"

namespace essh {

// Sharding of the flat parameter array over the ranks (ZeRO-1). The array is split into buckets of whole tensors whose
// gradients become final together, and every bucket into one shard per rank, which may be empty. A rank reduces the
// gradient, keeps the optimizer state and updates the weights of its own shards only. A sharded array has held()
// elements: this rank's shards one after the other. With one rank there is one shard and nothing is copied.
//
// Shards are split at tensor boundaries, so that an optimizer over matrices sees whole matrices; only the embedding is
// split by rows. A rank therefore holds at most 1/n of the parameters plus one matrix of a block.
class Shards {
 public:
  struct Bucket {
    Index begin, end;                      // of the flat array
    Index layer;                           // complete once backward has finished this layer; -1: at the end of backward
    std::vector<std::size_t> bounds = {};  // of the shards, relative to `begin`
    Index own_begin = 0, own_end = 0;      // this rank's shard, in the flat array
    Index held = 0;                        // offset of the shard in a sharded array
  };

  // `group` and `stream` must outlive it. A collective.
  Shards(const ParameterLayout& layout, comm::Group& group, Stream& stream);

  // In the order in which backward completes them.
  const std::vector<Bucket>& buckets() const { return buckets_; }
  Index held() const { return held_; }
  bool alone() const { return group_.size() == 1; }

  // Starts reducing the buckets that have become complete once backward has finished `layer`.
  void start_sums(Vector<float> gradient, Index layer);
  // Starts gathering a bucket.
  void start_gather(Vector<float> values, const Bucket& bucket);
  // Waits for all started collectives.
  void wait();

  // [begin, end) of a sharded array, gathered into the arena; with one rank, a view. A collective.
  Vector<const float> whole(Vector<const float> shares, Index begin, Index end, Arena& arena);
  // Copies this rank's shards of [begin, end) from `values`, in device or host memory.
  void keep(Vector<const float> values, Index begin, Index end, Vector<float> shares);

 private:
  void cut_shares(const ParameterLayout& layout);
  Index place(const Bucket& bucket, Index element) const { return bucket.held + element - bucket.own_begin; }

  comm::Group& group_;
  Stream& stream_;
  std::unique_ptr<comm::DeviceGroup> arrays_;
  std::vector<Bucket> buckets_;
  Index held_ = 0;
  std::size_t summed_ = 0;  // buckets whose reduction has started
  std::vector<comm::Request> under_way_;
};

// Offset of the next tensor in the flat array, or the end of the array.
Index tensor_end(const ParameterLayout& layout, std::size_t tensor);

}  // namespace essh
