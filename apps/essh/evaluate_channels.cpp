#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "apps/essh/cost_line.h"
#include "apps/essh/device_options.h"
#include "apps/essh/evaluate_verbs.h"
#include "apps/essh/number_option.h"
#include "apps/essh/output_file.h"
#include "essh/base/file.h"
#include "essh/base/json.h"
#include "essh/evaluate/channels.h"
#include "essh/store/run_folder.h"
#include "essh/store/stored_model.h"

namespace essh::verbs {
namespace {
namespace fs = std::filesystem;

struct EvaluateChannelsOptions {
  std::string model, tokenizer, svg, journal;
  std::vector<fs::path> data;
  ChannelOptions channels;
  DeviceOptions device;
  bool energy_only = false, json = false;
};

double upper_median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void print_table(const ChannelReport& report, const std::string& model) {
  fmt::print("{}: {} windows of {} tokens, {} spectral layers", model, report.windows, report.options.context,
             report.layers.size());
  if (!report.knock_out.empty()) fmt::print(", perplexity {:.3f}", report.perplexity);
  fmt::print("\n\n{:>7} {:>12} {:>10} {:>8} {:>16} {:>16}\n", "channel", "knock-out", "energy", "share",
             "median horizon", "attenuation");
  const double all = std::accumulate(report.energy.begin(), report.energy.end(), 0.0);
  for (std::size_t k = 0; k < report.energy.size(); ++k) {
    std::vector<double> horizons, attenuations;
    for (const auto& mode : report.modes) {
      if (mode.channel != static_cast<Index>(k)) continue;
      horizons.push_back(mode.horizon);
      attenuations.push_back(mode.attenuation);
    }
    fmt::print("{:>7} {:>12} {:>10.3e} {:>8.4f} {:>16.1f} {:>16.4f}\n", k + 1,
               report.knock_out.empty() ? "-" : fmt::format("{:+.4f}", report.knock_out[k]), report.energy[k],
               report.energy[k] / all, upper_median(horizons), upper_median(attenuations));
  }
  fmt::print("\n{:<10} {:>18} {:>18}\n", "", "negative Spearman", fmt::format("first-{} share", report.options.first));
  const auto line = [&](const char* name, const std::vector<double>& importance) {
    if (!importance.empty())
      fmt::print("{:<10} {:>18.2f} {:>18.2f}\n", name, negative_spearman(importance),
                 first_share(importance, report.options.first));
  };
  line("energy", report.energy);
  line("knock-out", report.knock_out);
}

void run(const EvaluateChannelsOptions& o) {
  if (!o.svg.empty()) check_output_file(o.svg);
  const CostLine cost;
  OpenDevice device(o.device);
  const auto folder = model_of_run(o.model);
  const auto model = load_model(folder);
  const auto stored = StoredModel::open(folder);
  auto options = o.channels;
  options.knock_out = !o.energy_only;
  const auto text = EvaluationText::open(o.data, folder, o.tokenizer, static_cast<TokenId>(model.config.eos_token_id),
                                         (options.context + 1) * options.windows);
  ResultJournal journal(o.journal);
  const auto report = measure_channels(model, stored.hash(), text, options, device.stream, journal);
  if (!o.svg.empty()) write_durably(o.svg, to_svg(draw(report, o.model)));
  if (o.json)
    fmt::print("{}\n", to_text(to_json(report, o.model, provenance_of(stored, folder, text.fingerprint(), 0)), 2));
  else
    print_table(report, o.model);
}

}  // namespace

void add_evaluate_channels(Verb& verb) {
  auto* channels = verb.add_subcommand("channels", "importance, energy and horizons of the spectral channels");
  auto o = std::make_shared<EvaluateChannelsOptions>();
  channels->add_option("MODEL", o->model, "a model folder or a run")->required();
  channels->add_option("--data", o->data, "a prepared dataset (its validation split), or files of text")->required();
  add_number(*channels, "--context", o->channels.context, "tokens of a window", 1, Index{1} << 24)
      ->capture_default_str();
  add_number(*channels, "--windows", o->channels.windows, "from the first on, or as many as there are", 1,
             Index{1} << 32)
      ->capture_default_str();
  add_number(*channels, "--batch", o->channels.batch, "windows in one pass", 1, Index{1} << 20)->capture_default_str();
  add_number(*channels, "--first", o->channels.first, "channels whose share is told", 1, 4096)->capture_default_str();
  channels->add_flag("--energy-only", o->energy_only, "no knock-outs: one pass over the text");
  channels->add_option("--tokenizer", o->tokenizer, "a tokenizer for text files, when the model folder has none");
  channels->add_option("--svg", o->svg, "draw importance, energy, horizons and attenuations");
  channels->add_option("--journal", o->journal, "keeps finished knock-outs; the same command goes on");
  o->device.add_places(*channels);
  channels->add_flag("--json", o->json, "print JSON, with every mode");
  channels->footer(
      "Example: essh evaluate channels runs/tiny --data heldout.txt --context 256 --windows 8 --svg channels.svg");
  channels->callback([o] { run(*o); });
}

}  // namespace essh::verbs
