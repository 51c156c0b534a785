#include "essh/train/run_identity.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <vector>

#include "essh/base/file.h"
#include "essh/base/json.h"
#include "essh/base/log.h"
#include "essh/config/fields.h"
#include "essh/store/run_folder.h"

namespace essh {
namespace fs = std::filesystem;
namespace {

constexpr std::uint64_t kKeptRecipeBytes = 1u << 20;

struct RunRecord {
  Index format = 1;
  std::string id;
  std::string data;
};

template <class Visitor>
void fields(Visitor& visit, RunRecord& r) {
  visit("format", r.format, Field{.min = 1, .max = 1, .required = true});
  visit("id", r.id, Field{.required = true});
  visit("data", r.data, Field{});
}

// Not from the seed: two runs of one recipe are two runs.
std::string random_id() {
  std::random_device source;
  std::string id;
  for (int i = 0; i < 4; ++i) id += fmt::format("{:08x}", source());
  return id;
}

RunRecord read_record(const fs::path& run) {
  RunRecord record;
  const auto path = run / kRunRecord;
  if (fs::exists(path)) read_fields(record, read_json(path), path.string());
  return record;
}

// An id is made where there is none: in a new run, and in one from before there were ids.
RunRecord settle_record(const fs::path& run, const std::string& data) {
  auto record = read_record(run);
  if (!record.id.empty() && !record.data.empty()) return record;
  if (record.id.empty()) record.id = random_id();
  record.data = data;
  write_durably(run / kRunRecord, to_text(write_fields(record), 2) + "\n");
  return record;
}

// Of the data only its fingerprint counts, not where it lies.
std::vector<RecipeDifference> differences(const Recipe& before, const Recipe& now) {
  auto found = recipe_differences(with_absolute_paths(before), with_absolute_paths(now));
  std::erase_if(found, [](const RecipeDifference& d) { return d.field == "data.path"; });
  return found;
}

std::string in_words(const std::vector<RecipeDifference>& differences) {
  std::vector<std::string> words;
  for (const auto& [field, before, after] : differences)
    words.push_back(fmt::format("{} was {} and is {}", field, before, after));
  return fmt::format("{}", fmt::join(words, ", "));
}

// Resuming with a different recipe is an error: a run is one recipe from its first checkpoint on, unless it is
// extended.
void require_recipe(const fs::path& run, const Recipe& kept, const Recipe& recipe, bool extend) {
  const auto place = (run / kRunRecipe).string();
  const auto different = differences(kept, recipe);
  if (different.empty()) return;
  auto fixed = different;
  std::erase_if(fixed, [](const RecipeDifference& d) { return may_change_in_a_run(d.field); });
  if (!fixed.empty()) {
    fail(ErrorKind::Usage, "{}: the run in this folder has another recipe: {}; use a new folder, or the old values",
         place, in_words(fixed));
  }
  if (!extend) {
    fail(ErrorKind::Usage,
         "{}: the run in this folder has another recipe: {}; use a new folder, the old values, or extend the run "
         "(`essh train --extend`)",
         place, in_words(different));
  }
  const auto steps = checkpoint_steps(run / kPretrainingFiles.checkpoints);
  if (recipe.run.steps < kept.run.steps && !steps.empty() && recipe.run.steps < steps.back())
    fail(ErrorKind::Usage, "{}: run.steps is {}, and {} steps have been made", place, recipe.run.steps, steps.back());
  for (const char* stale : {kRefinementFiles.model, kRefinementFiles.checkpoints}) {
    if (recipe.run.steps != kept.run.steps && fs::exists(run / stale))
      fail(ErrorKind::Usage, "{}: belongs to the shorter run; move it away, extend, then refine again",
           (run / stale).string());
  }
  log::info("{}: extended: {}", run.string(), in_words(different));
}

bool has_begun(const fs::path& run) {
  const auto checkpoints = run / kPretrainingFiles.checkpoints;
  return fs::exists(run / kPretrainingFiles.model) || !checkpoint_steps(checkpoints).empty() ||
         has_damaged_checkpoints(checkpoints);
}

// Of the data of a run from before run.json named it; empty when nothing tells.
std::string data_of_checkpoints(const fs::path& run) {
  const auto folder = run / kPretrainingFiles.checkpoints;
  const auto steps = checkpoint_steps(folder);
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    try {
      return read_checkpoint_header(checkpoint_folder(folder, *step)).data;
    } catch (const Error&) {
      continue;
    }
  }
  return "";
}

std::string absolute(const std::string& path) {
  if (path.empty()) return path;
  const auto named = fs::absolute(path);
  // Behind a link, ".." leads elsewhere than the words say.
  const bool climbs = std::find(named.begin(), named.end(), "..") != named.end();
  auto whole = climbs ? fs::weakly_canonical(named) : named.lexically_normal();
  if (!whole.has_filename() && whole.has_relative_path()) whole = whole.parent_path();
  return whole.string();
}

}  // namespace

Recipe with_absolute_paths(Recipe recipe) {
  for (auto* path : {&recipe.data.path, &recipe.model.start, &recipe.elastic.teacher}) *path = absolute(*path);
  return recipe;
}

RunIdentity settle_run(const fs::path& run, const Recipe& recipe, const std::string& data, bool extend) {
  RunIdentity identity{.id = "", .data = data, .recipe = with_absolute_paths(recipe)};
  const auto path = run / kRunRecipe;
  const bool begun = has_begun(run);
  if (begun && fs::exists(path))
    require_recipe(run, parse_recipe(read_text(path, kKeptRecipeBytes), path.string(), {}), identity.recipe, extend);
  if (!begun) fs::remove(run / kRunRecord);
  const auto record = settle_record(run, data);
  if (record.data != data) {
    fail(ErrorKind::Usage,
         "{}: this run was started on other data than {}; name the folder of its data, or use a new "
         "run folder",
         run.string(), identity.recipe.data.path);
  }
  identity.id = record.id;
  const auto text = recipe_yaml(identity.recipe);
  if (!fs::exists(path) || read_text(path, kKeptRecipeBytes) != text) write_durably(path, text);
  return identity;
}

RunIdentity settle_refinement(const fs::path& run, const Recipe& recipe, const std::string& data,
                              RefinementData choice) {
  RunIdentity identity{.id = "", .data = data, .recipe = with_absolute_paths(recipe)};
  auto expected = read_record(run).data;
  if (expected.empty()) expected = data_of_checkpoints(run);
  if (choice == RefinementData::OfTheRun && !expected.empty() && expected != data) {
    fail(ErrorKind::Usage,
         "{}: the data in {} is not what the run was pretrained on; restore it, or say where to read from with the "
         "setting data.path",
         run.string(), identity.recipe.data.path);
  }
  identity.id = settle_record(run, expected).id;
  return identity;
}

void require_same_run(const Snapshot& snapshot, const RunIdentity& identity, const fs::path& checkpoints) {
  const auto place = checkpoint_folder(checkpoints, snapshot.step);
  if (!snapshot.run.empty() && snapshot.run != identity.id) {
    fail(ErrorKind::Usage,
         "{}: a checkpoint of another run ({}, this one is {}); move it away, or go on in the folder it is from",
         place.string(), snapshot.run.substr(0, 8), identity.id.substr(0, 8));
  }
  const auto before = parse_recipe(snapshot.recipe, (place / "trainer.json").string() + ": recipe", {});
  auto different = differences(before, identity.recipe);
  // Refinement goes by its own settings; what pretraining may change, it may.
  std::erase_if(different, [&](const RecipeDifference& d) {
    return may_change_in_a_run(d.field) && !(snapshot.stage == "refinement" && d.field.starts_with("refine."));
  });
  if (!different.empty()) {
    fail(ErrorKind::Usage,
         "{}: a checkpoint of another recipe: {}; use the same recipe and settings to go on, or a new folder",
         place.string(), in_words(different));
  }
}

void set_aside_run(const fs::path& run, bool refinement_only) {
  std::vector<fs::path> produced;
  for (const auto& stage : {kPretrainingFiles, kRefinementFiles}) {
    if (refinement_only && stage.model == kPretrainingFiles.model) continue;
    for (const char* name : {stage.metrics, stage.checkpoints, stage.model}) {
      if (fs::exists(run / name)) produced.push_back(run / name);
    }
  }
  const auto numbered = [](fs::path path, int number) { return path += fmt::format(".{}", number); };
  int number = 1;
  for (bool taken = true; taken; number += taken) {
    taken = false;
    for (const auto& path : produced) taken = taken || fs::exists(numbered(path, number));
  }
  for (const auto& path : produced) {
    rename_path(path, numbered(path, number));
    log::info("{} is now {}", path.string(), numbered(path, number).string());
  }
  if (!produced.empty()) sync_folder(run);
}

}  // namespace essh
