#pragma once
#include <vector>

#include "essh/comm/device_group.h"
#include "essh/model/tensors.h"

namespace essh {

// Who owns what of the flat array of parameters (ZeRO-1). The array is cut into buckets, each of which backward
// completes at one moment, and every bucket into one part per rank. A rank sums the gradient, keeps the moments and
// updates the weights of its own parts only. "Parts" below is an array of held() elements with this rank's parts one
// after the other. With one rank everything is one part and nothing is copied.
class Shards {
 public:
  struct Bucket {
    Index begin, end;                 // of the flat array
    Index layer;                      // complete when backward has passed this layer; -1 at its end
    std::vector<std::size_t> bounds;  // of the parts, from `begin`
    Index own_begin, own_end;         // this rank's part, of the flat array
    Index held;                       // where it lies in an array of parts
  };

  // `group` and `stream` outlive it; a collective of the group.
  Shards(const ParameterLayout& layout, comm::Group& group, Stream& stream);

  // In the order in which backward completes them.
  const std::vector<Bucket>& buckets() const { return buckets_; }
  Index held() const { return held_; }
  bool alone() const { return group_.size() == 1; }

  // Starts the sums of the buckets that are complete when backward has passed `layer` and were not before.
  void start_sums(Vector<float> gradient, Index layer);
  // Starts taking the other ranks' parts of a bucket.
  void start_gather(Vector<float> values, const Bucket& bucket);
  // Until everything started is done.
  void wait();

  // [begin, end) of an array of which every rank holds its parts: a view of them with one rank, otherwise gathered into
  // the arena. A collective.
  Vector<const float> whole(Vector<const float> parts, Index begin, Index end, Arena& arena);
  // This rank's parts of [begin, end), taken from `values`, which hold that range in the device's or the host's memory.
  void keep(Vector<const float> values, Index begin, Index end, Vector<float> parts);

 private:
  Index place(const Bucket& bucket, Index element) const { return bucket.held + element - bucket.own_begin; }

  comm::Group& group_;
  Stream& stream_;
  std::unique_ptr<comm::DeviceGroup> arrays_;
  std::vector<Bucket> buckets_;
  Index held_ = 0;
  std::size_t summed_ = 0;  // buckets whose sums were started
  std::vector<comm::Request> under_way_;
};

}  // namespace essh
