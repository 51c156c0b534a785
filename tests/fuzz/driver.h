#pragma once
#include <cstdint>
#include <functional>
#include <memory>

namespace essh::fuzz {

// Makes one input and reads it; throws Error if the input is refused.
using OneInput = std::function<void()>;
void add_fuzzer(const char* name, std::function<OneInput(std::uint64_t seed)> make);

// Defines the fuzzer `name` of the program `fuzz`. A Fuzzer is made with a seed and called once for each input; the
// same seed makes the same inputs.
template <class Fuzzer>
struct Registered {
  explicit Registered(const char* name) {
    add_fuzzer(name, [](std::uint64_t seed) -> OneInput {
      const auto fuzzer = std::make_shared<Fuzzer>(seed);
      return [fuzzer] { (*fuzzer)(); };
    });
  }
};

}  // namespace essh::fuzz
