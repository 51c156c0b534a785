#pragma once
#include <vector>

#include "essh/comm/device_group.h"
#include "essh/model/tensors.h"

namespace essh {

// Which rank owns which share of the flat array of parameters (ZeRO-1). The array is cut into buckets of whole tensors,
// each of which backward completes at one moment, and every bucket into one share per rank, which may be empty. A rank
// sums the gradient, keeps the optimizer's states and updates the weights of its own shares only. An array of shares
// has held() elements, this rank's shares one after the other. With one rank everything is one share and nothing is
// copied.
//
// Shares are cut at tensor borders, so that an algorithm over matrices finds its own whole. Two kinds of tensors are
// cut at row borders instead: the embedding, and any tensor larger than an even share of all parameters. A rank
// therefore holds at most an even share and one whole tensor, and never more than two even shares.
class Shards {
 public:
  struct Bucket {
    Index begin, end;                      // of the flat array
    Index layer;                           // complete when backward has passed this layer; -1 at its end
    std::vector<std::size_t> bounds = {};  // of the shares, from `begin`
    Index own_begin = 0, own_end = 0;      // this rank's share, of the flat array
    Index held = 0;                        // where it lies in an array of shares
  };

  // `group` and `stream` outlive it; a collective of the group.
  Shards(const ParameterLayout& layout, comm::Group& group, Stream& stream);

  // In the order in which backward completes them.
  const std::vector<Bucket>& buckets() const { return buckets_; }
  Index held() const { return held_; }
  bool alone() const { return group_.size() == 1; }

  // Starts the sums of the buckets that are complete when backward has passed `layer` and were not before.
  void start_sums(Vector<float> gradient, Index layer);
  // Starts taking the other ranks' shares of a bucket.
  void start_gather(Vector<float> values, const Bucket& bucket);
  // Until everything started is done.
  void wait();

  // [begin, end) of an array of which every rank holds its shares: a view of them with one rank, otherwise gathered
  // into the arena. A collective.
  Vector<const float> whole(Vector<const float> shares, Index begin, Index end, Arena& arena);
  // This rank's shares of [begin, end), taken from `values`, which hold that range in the device's or the host's
  // memory.
  void keep(Vector<const float> values, Index begin, Index end, Vector<float> shares);

 private:
  void cut_shares(const ParameterLayout& layout);
  Index place(const Bucket& bucket, Index element) const { return bucket.held + element - bucket.own_begin; }

  comm::Group& group_;
  Stream& stream_;
  std::unique_ptr<comm::DeviceGroup> arrays_;
  std::vector<Bucket> buckets_;
  Index held_ = 0;
  std::size_t summed_ = 0;  // buckets whose sums were started
  std::vector<comm::Request> under_way_;
};

// Where the next tensor of the flat array begins, or the array ends.
Index tensor_end(const ParameterLayout& layout, std::size_t tensor);

}  // namespace essh
