#pragma once
#include <memory>

#include "essh/comm/group.h"

namespace essh::comm {

// Initialises MPI. `launched` is the number of ranks according to the launcher, 0 if unknown. Fails if MPI finds
// another number, or if this build has no MPI.
std::unique_ptr<Group> make_mpi_group(const GroupOptions& options, int launched);

// Ends all ranks with `code` if this process has an MPI group that was not closed; otherwise does nothing.
void abort_open_mpi_group(int code);

}  // namespace essh::comm
