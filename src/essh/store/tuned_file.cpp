#include "essh/store/tuned_file.h"

#include "essh/base/error.h"
#include "essh/base/file.h"
#include "essh/base/json.h"
#include "essh/base/log.h"

namespace essh {

TunedChoices read_choices(const std::filesystem::path& file) {
  if (!std::filesystem::exists(file)) return {};
  try {
    TunedChoices choices;
    const auto stored = parse_json(read_text(file, 16u << 20), file.string());
    if (!stored.is_object()) fail(ErrorKind::BadFile, "not an object of names and choices");
    for (const auto& [name, choice] : stored.items()) choices[name] = choice.get<std::string>();
    return choices;
  } catch (const std::exception& error) {
    log::warn("{}: not usable, tuning again ({})", file.string(), error.what());
    return {};
  }
}

void write_choices(const std::filesystem::path& file, const TunedChoices& choices) {
  try {
    Json stored = Json::object();
    for (const auto& [name, choice] : choices) stored[name] = choice;
    make_folder(file.parent_path());
    write_durably(file, to_text(stored, 1));
  } catch (const std::exception& error) {
    log::warn("{}: tuned choices could not be kept ({})", file.string(), error.what());
  }
}

}  // namespace essh
