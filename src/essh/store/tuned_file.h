#pragma once
#include <filesystem>

#include "essh/device/tuned_choice.h"

namespace essh {

// Choices of one GPU model. A missing file holds none; a damaged one is ignored with a warning.
TunedChoices read_choices(const std::filesystem::path& file);
// A failure is a warning: it costs the next process only the time to tune again.
void write_choices(const std::filesystem::path& file, const TunedChoices& choices);

}  // namespace essh
