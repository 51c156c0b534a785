#pragma once
#include <filesystem>
#include <string>

#include "essh/model/capacity.h"
#include "essh/model/config.h"

namespace essh {

// The known fields of essh.json; without that file `kind` is empty.
struct Provenance {
  std::string kind;           // "initial", "pretrained", "refined" or "export"
  std::string parent;         // hash of the family an export was cut from
  std::string tier;           // of an export, by its name in the family
  double xi = 0;              // of an export; 0 if its capacity was given by sizes
  Index full_parameters = 0;  // of an export: of its family at full capacity; 0 in older folders
};
Provenance read_provenance(const std::filesystem::path& folder);

// A tier of the model in a folder. An export also accepts the names of its own capacity in the family: T4 or xi=0.3125.
// Other budgets are errors for a model of fixed capacity.
Tier find_tier(const std::filesystem::path& folder, const ModelConfig& config, const std::string& name);

}  // namespace essh
