#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "apps/essh/verbs.h"
#include "essh/base/error.h"
#include "essh/base/spelling.h"
#include "essh/base/units.h"
#include "essh/base/utf8.h"
#include "essh/model/cost.h"
#include "essh/train/recipe.h"

namespace essh::verbs {
namespace {

void print_presets() {
  fmt::print("{:<18} {:>8} {:>6} {:>12} {:>11} {:>6}\n", "preset", "blocks", "width", "vocabulary", "parameters",
             "tiers");
  for (const auto& name : preset_names()) {
    const auto config = preset(name);
    fmt::print("{:<18} {:>8} {:>6} {:>12} {:>11} {:>6}\n", name, config.num_hidden_layers, config.hidden_size,
               config.vocab_size, format_count(static_cast<double>(cost_of(config, full_capacity(config)).parameters)),
               tiers_of(config).size());
  }
  fmt::print("\n`essh info PRESET` lists the tiers of one, `essh init PRESET -o MODEL` makes a model of it.\n");
}

void print_recipes() {
  fmt::print("{:<18} {:<18} {:>8} {:>7} {:>9} {:>12}\n", "recipe", "preset", "steps", "batch", "context", "data");
  for (const auto& name : recipe_names()) {
    const auto recipe = load_recipe(name, {});
    fmt::print("{:<18} {:<18} {:>8} {:>7} {:>9} {:>12}\n", name, recipe.model.preset, recipe.run.steps,
               recipe.run.batch, recipe.data.context, recipe.data.task.empty() ? "--data" : recipe.data.task);
  }
  fmt::print(
      "\n`essh train RECIPE --print-recipe` prints every field of one; `essh train --help` explains the fields.\n");
}

void run(const Verb& app, const std::vector<std::string>& words) {
  if (words == std::vector<std::string>{"presets"}) return print_presets();
  if (words == std::vector<std::string>{"recipes"}) return print_recipes();
  const auto* verb = &app;
  std::string before;
  for (const auto& word : words) {
    std::vector<std::string> names;
    const Verb* found = nullptr;
    for (const auto* sub : verb->verbs()) {
      if (!sub->hidden()) names.push_back(sub->name());
      if (sub->name() == word) found = sub;
    }
    if (!found) {
      if (verb == &app) names.insert(names.end(), {"presets", "recipes"});
      fail(ErrorKind::Usage, "help: there is no {}{} (there are {})", in_quotes(word), suggestion(word, names),
           fmt::join(names, ", "));
    }
    before += (before.empty() ? "" : " ") + verb->name();
    verb = found;
  }
  fmt::print("{}", verb->help(before));
}

}  // namespace

void add_help(Verb& app) {
  auto* verb = app.add_subcommand("help", "help for a verb; the presets; the recipes");
  const auto words = std::make_shared<std::vector<std::string>>();
  verb->add_option("TOPIC", *words, "a verb (and what it does, e.g. bench decode), presets, or recipes");
  verb->footer("Example: essh help bench decode\n         essh help recipes");
  verb->callback([&app, words] { run(app, *words); });
}

}  // namespace essh::verbs
