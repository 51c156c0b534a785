#include <memory>

#include "apps/essh/verbs.h"
#include "essh/train/run.h"

namespace essh::verbs {
namespace {

struct Options {
  std::string run, device = "auto";
  std::vector<std::string> settings;
  RunOptions options;
};

}  // namespace

void add_refine(CLI::App& app) {
  auto* verb = app.add_subcommand("refine", "shared refinement of a pretrained run; resumes by itself");
  auto o = std::make_shared<Options>();
  verb->add_option("RUN", o->run, "a run folder whose pretraining has finished")->required();
  verb->add_option("--set", o->settings, "a setting of the recipe, e.g. refine.steps=200; may be repeated")
      ->allow_extra_args(false);
  verb->add_option("--stop-after", o->options.stop_after, "save and stop after this many steps")
      ->check(CLI::NonNegativeNumber);
  verb->add_option("--threads", o->options.threads, "cores to use (all by default)")->check(CLI::Range(1, 4096));
  verb->add_option("--device", o->device, "cpu, cuda, cuda:N, or auto: a GPU when there is one");
  verb->footer("Example: essh refine runs/tiny");
  verb->callback([o] {
    o->options.device = parse_device(o->device);
    run_refinement(o->run, o->settings, o->options);
  });
}

}  // namespace essh::verbs
