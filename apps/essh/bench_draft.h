#pragma once
#include <string>
#include <vector>

#include "apps/essh/command_line.h"
#include "essh/base/json_fwd.h"
#include "essh/decode/engine.h"

namespace essh::verbs {

// bench decode --draft: decoding with drafts of smaller tiers, and without, in one run.
struct DraftBenchOptions {
  std::vector<std::string> drafts = {};
  Index tokens = 4;
  double temperature = 0;
  std::string text_file = {};

  void add_to(Verb& verb);
};

struct DraftedText {
  std::string model;
  Index depth;
  int steps, repetitions;
};

// A line for each draft of one tier.
std::vector<Json> measure_drafts(const DraftBenchOptions& options, Engine& engine, const Tier& tier,
                                 const DraftedText& text);
void print_drafts(const Json& lines);

}  // namespace essh::verbs
