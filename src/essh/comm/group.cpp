#include "essh/comm/group.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <optional>

#include "essh/base/error.h"
#include "essh/comm/mpi_group.h"

namespace essh::comm {
namespace {

// A number from the launcher's environment.
std::optional<int> launcher_says(const char* name, int smallest) {
  const char* text = std::getenv(name);
  if (text == nullptr) return std::nullopt;
  int value = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, value);
  if (error != std::errc{} || stop != end || value < smallest) {
    fail(ErrorKind::Usage, "{}={}: the launcher's number must be a whole number from {}", name, text, smallest);
  }
  return value;
}

}  // namespace

Request& Request::operator=(Request&& other) noexcept {
  if (this != &other) {
    release();
    work_ = std::move(other.work_);
  }
  return *this;
}

Request::~Request() {
  release();
}

void Request::wait() {
  if (const auto work = std::move(work_)) work->wait();
}

void Request::release() noexcept {
  if (work_ == nullptr) return;
  if (std::uncaught_exceptions() > 0) {
    work_->abandon();
    return;
  }
  try {
    wait();
  } catch (...) {
    // The result was never asked for; the group's next collective throws the same error.
  }
}

std::vector<std::size_t> even_bounds(std::size_t count, int ranks) {
  ESSH_ASSERT(ranks >= 1);
  const auto parts = static_cast<std::size_t>(ranks);
  std::vector<std::size_t> bounds(parts + 1);
  for (std::size_t r = 0; r <= parts; ++r) bounds[r] = count / parts * r + std::min(r, count % parts);
  return bounds;
}

std::vector<std::size_t> slice_bounds(Bounds bounds, std::size_t begin, std::size_t end) {
  ESSH_ASSERT(!bounds.empty() && begin <= end && end <= bounds.back());
  std::vector<std::size_t> slice(bounds.begin(), bounds.end());
  for (std::size_t& bound : slice) bound = std::clamp(bound, begin, end) - begin;
  return slice;
}

std::unique_ptr<Group> make_group(const GroupOptions& options) {
  std::optional<int> ranks = launcher_says("OMPI_COMM_WORLD_SIZE", 1);
  if (!ranks) ranks = launcher_says("PMI_SIZE", 1);
  // A PMIx launcher gives each process its rank; the number of ranks is known only through MPI.
  const bool unknown = !ranks && std::getenv("PMIX_RANK") != nullptr;
  if (unknown || (ranks && *ranks > 1)) return make_mpi_group(options, ranks.value_or(0));
  return make_single_group();
}

int local_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"}) {
    if (const auto rank = launcher_says(name, 0)) return *rank;
  }
  return 0;
}

RankGuard::~RankGuard() {
  if (!left_) leave(exit_code(ErrorKind::Internal));
}

int RankGuard::leave(int code) {
  left_ = true;
  abort_open_mpi_group(code == 0 ? exit_code(ErrorKind::Internal) : code);
  return code;
}

}  // namespace essh::comm
