#include "essh/export/verify.h"

#include <memory>

#include "apps/essh/device_options.h"
#include "apps/essh/verbs.h"
#include "essh/base/error.h"
#include "essh/base/json.h"
#include "essh/base/log.h"
#include "essh/base/temporary.h"
#include "essh/store/run_folder.h"

namespace essh::verbs {
namespace {

struct Options {
  std::vector<std::string> models;
  std::string parent;
  bool json = false;
  DeviceOptions device{.device = "cpu"};
};

void run(const Options& o) {
  OpenDevice device(o.device);
  Json list = Json::array();
  std::size_t bad = 0;
  for (const auto& model : o.models) {
    // `exports/*` also finds what another command is writing, or a killed one left behind.
    const auto path = std::filesystem::path(model) / "";
    if (is_temporary_name(path.parent_path().filename().string())) {
      log::warn("{}: an unfinished folder, passed over", model);
      continue;
    }
    const auto result = verify_model(
        model, o.parent.empty() ? std::nullopt : std::optional<std::filesystem::path>(model_of_run(o.parent)),
        device.stream, o.device.chosen_precision());
    bad += !result.good();
    Json checks = Json::array();
    for (const auto& check : result.checks) {
      checks.push_back({{"check", check.name}, {"good", check.good}, {"detail", check.detail}});
      if (!o.json) fmt::print("{} {:<12} {}: {}\n", check.good ? "ok  " : "FAIL", check.name, model, check.detail);
    }
    list.push_back({{"model", model}, {"good", result.good()}, {"checks", checks}});
  }
  if (list.empty()) fail(ErrorKind::Usage, "verify: none of these is a finished model folder");
  if (o.json) fmt::print("{}\n", to_text({{"good", bad == 0}, {"models", list}}, 2));
  if (bad > 0) fail(ErrorKind::BadFile, "{} of {} folders failed verification", bad, o.models.size());
}

}  // namespace

void add_verify(Verb& app) {
  auto* verb = app.add_subcommand("verify", "files, hashes, shapes, finiteness; bitwise against the parent");
  auto o = std::make_shared<Options>();
  verb->add_option("MODEL", o->models, "model folders")->required();
  verb->add_option("--parent", o->parent, "the family or the run they were exported from");
  verb->add_flag("--json", o->json, "print JSON");
  o->device.add_to(*verb);
  verb->footer(
      "Example: essh verify exports/T4 --parent models/tiny\n"
      "         essh verify exports/* --parent models/tiny --device cuda");
  verb->callback([o] { run(*o); });
}

}  // namespace essh::verbs
