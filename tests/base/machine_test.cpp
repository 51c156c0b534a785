#include "essh/base/machine.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace essh {
namespace {

bool has(const Processor& processor, std::string_view name) {
  const auto found = std::find_if(processor.simd.begin(), processor.simd.end(),
                                  [&](const SimdFeature& feature) { return feature.name == name; });
  EXPECT_NE(found, processor.simd.end()) << name << " is not listed";
  return found != processor.simd.end() && found->present;
}

TEST(Machine, ReadsX86Processors) {
  const auto processor = parse_processor(
      "processor\t: 0\nmodel name\t: Some Processor @ 2.10GHz\nflags\t\t: fpu fma avx2 avx512f avx512_vnni amx_bf16\n\n"
      "processor\t: 1\nmodel name\t: Another\nflags\t\t: fpu\n",
      "x86_64");
  EXPECT_EQ(processor.model, "Some Processor @ 2.10GHz");
  EXPECT_TRUE(has(processor, "AVX2"));
  EXPECT_TRUE(has(processor, "AVX-512"));
  EXPECT_TRUE(has(processor, "AVX-512 VNNI"));
  EXPECT_TRUE(has(processor, "AMX BF16"));
  // Flags are whole words: avx512_vnni is not avx_vnni, avx512f alone is not avx512_bf16.
  EXPECT_FALSE(has(processor, "AVX-VNNI"));
  EXPECT_FALSE(has(processor, "AVX-512 BF16"));
  EXPECT_FALSE(has(processor, "AMX INT8"));
}

TEST(Machine, ReadsArmProcessors) {
  const auto processor = parse_processor(
      "processor\t: 0\nFeatures\t: fp asimd asimddp i8mm bf16\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n",
      "aarch64");
  EXPECT_EQ(processor.model, "ARM Neoverse V1");
  EXPECT_TRUE(has(processor, "NEON"));
  EXPECT_TRUE(has(processor, "dotprod"));
  EXPECT_TRUE(has(processor, "i8mm"));
  EXPECT_TRUE(has(processor, "BF16"));
  EXPECT_FALSE(has(processor, "SVE"));
  EXPECT_EQ(parse_processor("CPU implementer : 0x61\nCPU part : 0x022\n", "aarch64").model,
            "ARM implementer 0x61, part 0x022");
}

TEST(Machine, ReadsMemory) {
  const auto memory = parse_memory("MemTotal:       24117248 kB\nMemFree:  1 kB\nMemAvailable:   23068672 kB\n");
  EXPECT_EQ(memory.total, 24117248ull * 1024);
  EXPECT_EQ(memory.available, 23068672ull * 1024);
}

TEST(Machine, UnknownFactsAreEmpty) {
  const auto processor = parse_processor("", "riscv64");
  EXPECT_EQ(processor.model, "");
  EXPECT_EQ(processor.architecture, "riscv64");
  EXPECT_TRUE(processor.simd.empty());
  EXPECT_EQ(parse_memory("MemTotal: many\n").total, 0u);
}

TEST(Machine, DescribesThisOne) {
  EXPECT_FALSE(this_processor().architecture.empty());
  const auto memory = this_memory();
  EXPECT_GT(memory.total, 0u);
  EXPECT_LE(memory.available, memory.total);
}

}  // namespace
}  // namespace essh
