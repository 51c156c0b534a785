#include "essh/train/named_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "essh/base/error.h"
#include "essh/base/spelling.h"
#include "essh/base/utf8.h"

namespace essh {
namespace {

constexpr std::array<const char*, 3> kPresets = {"tiny", "370m", "1.5b"};
// Of the same presets, but with settings of its own.
constexpr const char* kOtherRecipe = "posthoc";

// The constants of the paper's main recipe: Tables tab:setup-config and tab:repro-hparams, column 370M, and the
// sections named below. Model, data, steps and batches stay those of the recipe. The paper states neither AdamW's eps
// nor the memory of the running activations.
constexpr std::array kPaper = {
    "model.slopes=false",
    // tab:setup-config: AdamW with one rate for all tensors, which falls to 10 % on a cosine.
    "optimizer.algorithm=adamw",
    "optimizer.rate=1.2e-3",
    "optimizer.embedding_rate=1",
    "optimizer.beta1=0.9",
    "optimizer.beta2=0.95",
    "optimizer.weight_decay=0.1",
    "optimizer.clip=1",
    "optimizer.schedule=cosine",
    "optimizer.warmup=0.01",
    "optimizer.floor=0.1",
    // app:elastic-mix: full capacity for 250M tokens, which are 3.38 % of the 7.4B of 370M. Then f = 0.75, the rest
    // uniform over the ten training capacities. alpha_ff = 0.5; gradients of mixers are not scaled.
    "elastic.sampling=fixed",
    "elastic.full_share=0.75",
    "elastic.smallest_share=0",
    "elastic.warmup_tokens=250e6",
    "elastic.warmup_share=0.0338",
    "elastic.budgets=[]",
    "elastic.parameter_targets=[]",
    "elastic.budget_channels=0",
    "elastic.ffn_scale=0.5",
    "elastic.mixer_scale=1",
    // app:elastic-distill: CE + 0.5 KL. The teacher is the current full capacity, without a gradient.
    "elastic.label=1",
    "elastic.kl=0.5",
    "elastic.joint=false",
    "elastic.teacher=\"\"",
    "elastic.calibration_tokens=0",
    // app:elastic-sort.
    "elastic.ordering_period=500",
    "elastic.ordering_until=0.8",
    // app:elastic-export: CE + CE + 5 TV, warm-up 5 %, cosine to zero, one of {2, 4, 8, 16, 24}/32 per step.
    "refine.rate=6.0e-5",
    "refine.warmup=0.05",
    "refine.decay=all",
    "refine.moments=fresh",
    "refine.schedule=cosine",
    "refine.order=own",
    "refine.label=1",
    "refine.kl=0",
    "refine.tv=5",
    "refine.full_share=0",
    "refine.sampling=step",
    "refine.budgets=[]",
    "refine.smallest_share=0",
    "refine.teacher_budget=1",
};

// What differs for a preset.
constexpr std::array<std::pair<const char*, const char*>, 3> kPaperByPreset = {{
    // tab:repro-hparams, column 1.5B.
    {"1.5b", "optimizer.rate=1.0e-3"},
    {"1.5b", "refine.sampling=shuffle"},
    // A run of tiny has 400 steps; 500 of the 28,229 of 370M are 7 of 400.
    {"tiny", "elastic.ordering_period=7"},
}};

// Our own recipe (docs/recipe.md): three fifths of the micro-batches train a slice, from labels alone, which needs no
// pass of a teacher. The rate stays at its peak, and falls to zero in refinement, which keeps the moments and the order
// of the data, and in which a slice, in two fifths of the micro-batches, learns from the full capacity alone. The
// smallest capacity, which has no near neighbour, is drawn more often. The peak stays the recipe's.
constexpr std::array kOwn = {
    "model.slopes=true",
    "optimizer.slope_rate=0.25",
    "optimizer.algorithm=muon",
    "optimizer.embedding_rate=4",
    "optimizer.schedule=constant",
    "optimizer.warmup=0.1",
    "elastic.sampling=fixed",
    "elastic.full_share=0.4",
    "elastic.smallest_share=0.2",
    "elastic.warmup_tokens=250e6",
    "elastic.warmup_share=0.2",
    "elastic.budgets=[]",
    "elastic.parameter_targets=[]",
    "elastic.ffn_scale=0.5",
    "elastic.mixer_scale=1",
    "elastic.label=1",
    "elastic.kl=0",
    "elastic.joint=false",
    "elastic.teacher=\"\"",
    "elastic.calibration_tokens=0",
    "refine.rate=0",
    "refine.warmup=0",
    "refine.decay=matrices",
    "refine.moments=kept",
    "refine.schedule=linear",
    "refine.order=continued",
    "refine.label=0",
    "refine.kl=2",
    "refine.tv=0",
    "refine.full_share=0.6",
    "refine.sampling=shuffle",
    "refine.budgets=[]",
    "refine.smallest_share=0.2",
    "refine.teacher_budget=1",
};

}  // namespace

std::vector<std::string> settings_names() {
  return {"paper", "essh"};
}

std::vector<std::string> named_settings(const std::string& name, const std::string& recipe, const std::string& preset) {
  const auto names = settings_names();
  if (std::ranges::find(names, name) == names.end())
    fail(ErrorKind::Usage, "--recipe: there are no settings {}{} (there are {})", in_quotes(name),
         suggestion(name, names), fmt::join(names, ", "));
  if (recipe == kOtherRecipe || std::ranges::find(kPresets, preset) == kPresets.end())
    fail(ErrorKind::Usage, "--recipe {}: is for the models {}; recipe {} has settings of its own: leave --recipe out",
         name, fmt::join(kPresets, ", "), in_quotes(recipe));
  if (name == "essh") return {kOwn.begin(), kOwn.end()};
  std::vector<std::string> settings(kPaper.begin(), kPaper.end());
  for (const auto& [only, setting] : kPaperByPreset) {
    if (only == preset) settings.emplace_back(setting);
  }
  return settings;
}

}  // namespace essh
