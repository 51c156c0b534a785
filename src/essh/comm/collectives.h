#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "essh/comm/group.h"
#include "essh/comm/transport.h"

namespace essh::comm {

// The collectives of Group over a transport; each returns when this rank has its result. For sums, each rank receives
// its shard from all others and adds in rank order. An all-reduce moves 2 (n - 1) / n of the array, as a ring does.
// Memory besides the array: about 4 MiB.
class Collectives {
 public:
  explicit Collectives(Transport& transport) : transport_(transport) {}

  template <class T>  // float, double
  void all_reduce_sum(std::span<T> data);
  template <class T>
  void reduce_scatter_sum(std::span<T> data, Bounds bounds);
  void all_gather(std::span<float> data, Bounds bounds);
  void all_gather(std::span<std::byte> data, Bounds bounds);
  std::int64_t all_reduce_sum(std::int64_t value);
  double all_reduce_max(double value);
  void broadcast(std::span<std::byte> data, int root);
  void barrier();

 private:
  template <class T>
  std::vector<T> gather_values(T value);
  void check(Bounds bounds, std::size_t count) const;

  Transport& transport_;
  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;
  std::vector<std::byte> received_;
};

}  // namespace essh::comm
