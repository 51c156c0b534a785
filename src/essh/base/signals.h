#pragma once

namespace essh {

// Process-wide, called once by main(). SIGINT, SIGTERM and SIGHUP remove temporaries before they end the process. A
// write beyond `ulimit -f` fails instead of ending the process.
void install_signal_handlers();

}  // namespace essh
