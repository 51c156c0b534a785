#include "essh/base/signals.h"

#include <signal.h>

#include "essh/base/temporary.h"

namespace essh {
namespace {

void end_by(int number) {
  remove_guarded_temporaries();
  // SA_RESETHAND has restored the default; the signal arrives when this handler returns.
  ::raise(number);
}

}  // namespace

void install_signal_handlers() {
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGXFSZ, &ignore, nullptr);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before {};
    ::sigaction(number, nullptr, &before);
    if (before.sa_handler == SIG_IGN) continue;  // as nohup wants it
    struct sigaction action {};
    action.sa_handler = end_by;
    action.sa_flags = SA_RESETHAND;
    ::sigaction(number, &action, nullptr);
  }
}

}  // namespace essh
