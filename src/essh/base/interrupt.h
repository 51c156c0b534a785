#pragma once
#include <string>

namespace essh {

// Defers the first SIGINT or SIGTERM for the lifetime of this object: requested() becomes true, so that the caller can
// finish in order. A second signal has its default effect. At most one instance at a time.
class InterruptScope {
 public:
  // `words` are printed to standard error when the signal arrives; empty prints nothing.
  explicit InterruptScope(std::string words);
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  bool requested() const;

 private:
  std::string words_;
};

}  // namespace essh
