#include "bench/kernels/operand.h"
#include "bench/machine.h"
#include "essh/kernels/cross_entropy.h"

namespace essh::bench {
namespace {

void cross_entropy(benchmark::State& state) {
  const Index tokens = 512, vocabulary = 50432;
  const Operand<float> logits(tokens, vocabulary), d_logits(tokens, vocabulary), loss(1, tokens);
  const Operand<std::int32_t> targets(1, tokens, 0, static_cast<double>(vocabulary));
  for (auto _ : state) {
    run(stream(), CrossEntropy<float>{logits.view(), targets.vector(), loss.vector(), d_logits.view()});
  }
  count_bytes(state, 2.0 * static_cast<double>(tokens * vocabulary) * sizeof(float));
}
BENCHMARK(cross_entropy)->Unit(benchmark::kMillisecond)->MinTime(0.3)->UseRealTime();

}  // namespace
}  // namespace essh::bench
