#pragma once
#include <string>
#include <vector>

#include "apps/essh/command_line.h"
#include "essh/base/json_fwd.h"
#include "essh/device/stream.h"
#include "essh/store/run_folder.h"
#include "essh/store/stored_model.h"

namespace essh::verbs {

// A model folder or training run, or a preset with its initial weights: speed does not depend on the values.
StoredModel open_bench_model(const std::string& name);
// The "provenance" of a result for this model on random tokens.
Json bench_provenance(const std::string& name, const StoredModel& model, std::uint64_t seed);
// A value as a cell of a CSV line.
std::string csv_cell(const Json& value);
void print_profile(const std::vector<ProfiledScope::Line>& lines);

void add_bench_decode(Verb& verb);
void add_bench_serve(Verb& verb);

}  // namespace essh::verbs
