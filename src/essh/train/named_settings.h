#pragma once
#include <string>
#include <vector>

// Settings with a name, which replace those of a recipe: `essh train 370m --recipe paper`, `--recipe essh`.
namespace essh {

std::vector<std::string> settings_names();
// The settings ("optimizer.rate=1.2e-3") of a name for a recipe, a file or a built-in name, with a model of this
// preset. Fails for recipes that have settings of their own.
std::vector<std::string> named_settings(const std::string& name, const std::string& recipe, const std::string& preset);

}  // namespace essh
