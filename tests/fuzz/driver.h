#pragma once
#include <cstdint>
#include <functional>
#include <memory>

namespace essh::fuzz {

using OneInput = std::function<void()>;
int run_inputs(int argc, char** argv, const char* name, const std::function<OneInput(std::uint64_t seed)>& make);

// Calls make(seed)() --iterations times; each call makes one input and reads it, and throws Error if the input is
// refused. Fails on any other exception, on an Error of kind Internal, on an input that takes over --max-seconds of
// processor time (25 times the slowest known: hypervisors that share a core count theirs too) and on memory over
// --max-mb. Prints one line of figures, and with --classes every class of error with its first message.
template <class Make>
int run(int argc, char** argv, const char* name, const Make& make) {
  return run_inputs(argc, argv, name, [&](std::uint64_t seed) -> OneInput {
    using Fuzzer = decltype(make(seed));
    const std::shared_ptr<Fuzzer> fuzzer(new Fuzzer(make(seed)));
    return [fuzzer] { (*fuzzer)(); };
  });
}

}  // namespace essh::fuzz
