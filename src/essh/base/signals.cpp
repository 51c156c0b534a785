#include "essh/base/signals.h"

#include <signal.h>

#include "essh/base/temporary.h"

namespace essh {
namespace {

void end_by(int number) {
  remove_guarded_temporaries();
  // Delivered when this handler returns. Reset explicitly: code that restores this handler may omit SA_RESETHAND.
  ::signal(number, SIG_DFL);
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
    if (before.sa_handler == SIG_IGN) continue;  // keep nohup's choice
    struct sigaction action {};
    action.sa_handler = end_by;
    ::sigaction(number, &action, nullptr);
  }
}

}  // namespace essh
