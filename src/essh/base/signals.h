#pragma once

namespace essh {

// For the whole process, called once by the program: SIGINT, SIGTERM and SIGHUP remove its temporaries before they end
// it, and a file that reaches the limit of its size (`ulimit -f`) is a failed write instead of the end.
void install_signal_handlers();

}  // namespace essh
