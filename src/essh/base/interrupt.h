#pragma once
#include <string>

namespace essh {

// While it lives, the first SIGINT or SIGTERM is only noted, for work that ends in order; a second one has its usual
// effect. One at a time.
class InterruptScope {
 public:
  // `words` go to standard error when the signal comes; none for a rank that does not speak.
  explicit InterruptScope(std::string words);
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  bool requested() const;

 private:
  std::string words_;
};

}  // namespace essh
