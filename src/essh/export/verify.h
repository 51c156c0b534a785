#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "essh/device/stream.h"
#include "essh/model/capacity.h"
#include "essh/model/precision.h"

namespace essh {

// Checks made and faults found. A fault does not stop the other checks, so one report shows all faults.
struct Verification {
  struct Check {
    std::string name;
    bool good;
    std::string detail;
  };
  std::vector<Check> checks;
  bool good() const;
};

// Input for comparing an export with its parent: the paper's two batches of 4 x 2048 tokens.
struct VerifyInput {
  static constexpr Index kBatches = 2, kSequences = 4;
  Index length = 2048;                    // tokens of a sequence
  std::vector<std::int32_t> tokens = {};  // needed() tokens of held-out text; empty: random tokens
  std::string name = "random tokens";

  Index needed() const { return kBatches * kSequences * length; }
};

// Checks files and hashes, that every file is listed, that the tokenizer is readable if there is or must be one, names,
// shapes and finiteness. With a parent, also checks that the logits of `input` equal the parent's at this capacity bit
// by bit, computed in parallel and, for the first tokens of each batch, token by token. If the folder is quantised, the
// parent's matrices are quantised the same way first.
Verification verify_model(const std::filesystem::path& folder, const std::optional<std::filesystem::path>& parent,
                          Stream& stream, Precision precision = Precision::Auto, const VerifyInput& input = {});

}  // namespace essh
