#include "essh/export/export.h"

#include "essh/base/json.h"
#include "essh/model/cost.h"

namespace essh {

void export_tier(const LoadedModel& parent, const std::filesystem::path& parent_folder, const std::string& parent_hash,
                 const Tier& tier, const std::filesystem::path& target, const ExportOptions& options) {
  refuse_overlap(parent_folder, target);
  const auto cost = cost_of(parent.config, tier.capacity);
  SaveOptions save{.format = options.format,
                   .copied = companion_files(parent_folder),
                   .existing = options.existing,
                   .shard_bytes = options.shard_bytes,
                   .slopes = false};
  const Json provenance = {{"format", 1},
                           {"kind", "export"},
                           {"parent", parent_hash},
                           {"tier", tier.name},
                           {"xi", tier.budget},
                           {"channels", tier.capacity.channels},
                           {"ffn", tier.capacity.ffn},
                           {"parameters", cost.parameters},
                           {"full_parameters", cost_of(parent.config, full_capacity(parent.config)).parameters},
                           {"state_bytes", cost.state_bytes},
                           {"kv_bytes", cost.kv_bytes}};
  save.provenance = to_text(provenance, 2);
  save_model(target, parent.config, parent.parameters, tier.capacity, save);
}

}  // namespace essh
