#include <memory>

#include "apps/essh/device_options.h"
#include "apps/essh/number_option.h"
#include "apps/essh/verbs.h"
#include "essh/train/run.h"

namespace essh::verbs {
namespace {

struct RefineOptions {
  std::string run;
  std::vector<std::string> settings;
  RunOptions options;
  DeviceOptions device;
};

}  // namespace

void add_refine(Verb& app) {
  auto* verb = app.add_subcommand("refine", "shared refinement of a pretrained run; resumes by itself");
  auto o = std::make_shared<RefineOptions>();
  verb->add_option("RUN", o->run, "a run folder whose pretraining has finished")->required();
  verb->add_option("--set", o->settings, "a setting of the recipe, e.g. refine.steps=200; may be repeated")
      ->allow_extra_args(false);
  add_number(*verb, "--stop-after", o->options.stop_after, "save and stop after this many steps", 0, Index{1} << 40);
  verb->add_flag("--restart", o->options.restart,
                 "start over at step 0; what was produced so far is kept as NAME.1, NAME.2, ...");
  o->device.add_places(*verb);
  verb->footer("Example: essh refine runs/tiny");
  verb->callback([o] {
    OpenDevice device(o->device);
    const auto made = run_refinement(o->run, o->settings, device.stream, o->options);
    if (!made.empty()) fmt::print("{}\n", made.string());
  });
}

}  // namespace essh::verbs
