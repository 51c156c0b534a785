#include "essh/store/run_folder.h"

namespace essh {

std::filesystem::path model_of_run(const std::filesystem::path& path) {
  for (const auto& folder : {path, path / kRefinementFiles.model, path / kPretrainingFiles.model}) {
    if (std::filesystem::exists(folder / "config.json")) return folder;
  }
  return path;
}

}  // namespace essh
