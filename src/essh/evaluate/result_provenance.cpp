#include "essh/evaluate/result_provenance.h"

#include "essh/base/build_commit.h"
#include "essh/base/build_info.h"
#include "essh/model/cost.h"
#include "essh/store/provenance.h"

namespace essh {
namespace {

Provenance origin_of(const std::filesystem::path& folder) {
  return folder.empty() ? Provenance{} : read_provenance(folder);
}

}  // namespace

std::string this_build() {
  std::string text = fmt::format("essh {}", build::kVersion);
  const auto append = [&](std::string_view before, std::string_view fact, std::string_view after = "") {
    if (!fact.empty()) text += fmt::format("{}{}{}", before, fact, after);
  };
  append(" (", build::kCommit, ")");
  append(", ", build::kCompiler);
  append(", ", build::kBuildType);
  if (build::kCuda.found) append(", CUDA ", build::kCuda.version);
  append(", sanitizers ", build::kSanitizers);
  return text;
}

ResultProvenance provenance_of(const StoredModel& model, const std::filesystem::path& folder,
                               std::string data_fingerprint, std::uint64_t seed) {
  return {.model_hash = model.hash(),
          .stage = origin_of(folder).kind,
          .data_fingerprint = std::move(data_fingerprint),
          .seed = seed,
          .build = this_build()};
}

Family family_of(const StoredModel& model, const std::filesystem::path& folder) {
  const auto origin = origin_of(folder);
  if (origin.kind == "export") return {origin.parent, origin.full_parameters};
  return {model.hash(), cost_of(model.config(), full_capacity(model.config())).parameters};
}

}  // namespace essh
