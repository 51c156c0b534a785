#pragma once
#include <memory>

#include "essh/comm/group.h"

namespace essh::comm {

// Initialises MPI. `launched` is the number of ranks that the launcher told, 0 when it did not: fails when MPI finds
// another number, or when this build has no MPI.
std::unique_ptr<Group> make_mpi_group(const GroupOptions& options, int launched);

// Ends all ranks with `code` when this process has an MPI group that was not closed; otherwise does nothing.
void abort_open_mpi_group(int code);

}  // namespace essh::comm
