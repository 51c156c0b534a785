#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "essh/device/stream.h"
#include "essh/model/capacity.h"
#include "essh/model/precision.h"

namespace essh {

// What was looked at and what is wrong. Every check that can still run does, so one report shows all faults.
struct Verification {
  struct Check {
    std::string name;
    bool good;
    std::string detail;
  };
  std::vector<Check> checks;
  bool good() const;
};

// What an export and its parent are compared on: the paper's two batches of 4 x 2048 tokens.
struct VerifyInput {
  static constexpr Index kBatches = 2, kSequences = 4;
  Index length = 2048;                    // tokens of a sequence
  std::vector<std::int32_t> tokens = {};  // needed() of them, of held-out text; empty: drawn at random
  std::string name = "random tokens";

  Index needed() const { return kBatches * kSequences * length; }
};

// Files and hashes, every file listed; a tokenizer that can be read, where there is or must be one; names and shapes,
// finiteness; with a parent, also that the logits of `input`, computed on the stream in parallel and, for the first
// tokens of each batch, token by token, equal the parent's at this capacity bit by bit. When the folder stores matrices
// in fewer bits than the parent, the parent's are rounded the same way first.
Verification verify_model(const std::filesystem::path& folder, const std::optional<std::filesystem::path>& parent,
                          Stream& stream, Precision precision = Precision::Auto, const VerifyInput& input = {});

}  // namespace essh
