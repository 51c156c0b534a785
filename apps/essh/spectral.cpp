#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <memory>
#include <string>
#include <vector>

#include "apps/essh/number_option.h"
#include "apps/essh/output_file.h"
#include "apps/essh/verbs.h"
#include "essh/base/file.h"
#include "essh/base/json.h"
#include "essh/model/config.h"
#include "essh/plot/svg.h"
#include "essh/spectral/hankel.h"
#include "essh/spectral/modal_init.h"
#include "essh/spectral/real_poles.h"

namespace essh::verbs {
namespace {

struct SpectralOptions {
  std::int64_t length = 2048;
  int channels = 32;
  int modes = 8;
  std::string init = "hankel";
  std::uint64_t seed = 0;
  bool json = false;
  std::string svg;
  std::vector<int> real_poles;
};

struct ChannelFacts {
  int sign_changes;
  double fit_error;  // of the table's response against the filter of this channel
  std::vector<std::complex<double>> poles;
  double slowest;  // longest e-folding time, in tokens
};

// The share of the weighted family kept at a deployment tier.
struct TierFacts {
  std::string name;
  int channels;
  ReconstructionError error;
};

struct Facts {
  HankelFilters filters;
  std::vector<ChannelFacts> channels = {};
  std::vector<TierFacts> tiers = {};
  RealPoleFits real = {};  // empty unless requested
};

double median(std::vector<double> values) {
  const auto half = values.size() / 2;
  std::ranges::sort(values);
  return values.size() % 2 ? values[half] : 0.5 * (values[half - 1] + values[half]);
}

// Errors of all channels with `modes` real poles.
std::vector<double> real_errors(const RealPoleFits& fits, int modes) {
  std::vector<double> errors;
  for (int k = 0; k < fits.channels; ++k) errors.push_back(fits.error(k, modes));
  return errors;
}

Facts measure(const SpectralOptions& options) {
  const ModalInit init = parse_modal_init(options.init);
  Facts facts{hankel_filters(options.length, options.channels)};
  const ModalTable table = make_modal_table(init, options.channels, options.modes, options.seed, options.length);
  for (int k = 0; k < options.channels; ++k) {
    const auto modes = table.channel(k);
    const auto filter = facts.filters.filter(k);
    ChannelFacts channel{sign_changes(filter), relative_error(filter, response(modes, options.length)), {}, 0};
    for (const DampedMode& mode : modes) {
      channel.poles.push_back(std::polar(mode.rho, mode.theta));
      channel.slowest = std::max(channel.slowest, -1.0 / std::log(mode.rho));
    }
    facts.channels.push_back(std::move(channel));
  }
  std::vector<double> errors;
  for (const auto& channel : facts.channels) errors.push_back(channel.fit_error);
  ModelConfig config = preset("370m");
  config.spectral_channels = options.channels;
  config.elastic = two_rate(options.channels, config.intermediate_size, deployment_budgets());
  for (const auto& tier : tiers_of(config)) {
    const int kept = static_cast<int>(tier.capacity.channels);
    facts.tiers.push_back({tier.name, kept, reconstruction_error(facts.filters, errors, kept)});
  }
  if (!options.real_poles.empty())
    facts.real = fit_real_poles(facts.filters, *std::ranges::max_element(options.real_poles));
  return facts;
}

Json to_json(const SpectralOptions& options, const Facts& facts) {
  Json channels = Json::array();
  for (std::size_t k = 0; k < facts.channels.size(); ++k) {
    const ChannelFacts& channel = facts.channels[k];
    Json poles = Json::array();
    for (const auto& pole : channel.poles) poles.push_back({pole.real(), pole.imag()});
    channels.push_back({{"k", k + 1},
                        {"sigma", facts.filters.sigma[k]},
                        {"sign_changes", channel.sign_changes},
                        {"fit_error", channel.fit_error},
                        {"poles", std::move(poles)}});
  }
  Json tiers = Json::array();
  for (const auto& tier : facts.tiers) {
    tiers.push_back({{"tier", tier.name},
                     {"channels", tier.channels},
                     {"tail", tier.error.tail},
                     {"fit", tier.error.fit},
                     {"error", tier.error.total()},
                     {"share", tier.error.total() / facts.filters.trace}});
  }
  Json json = {{"length", options.length},     {"modes", options.modes},          {"sigma", facts.filters.sigma},
               {"trace", facts.filters.trace}, {"channels", std::move(channels)}, {"tiers", std::move(tiers)}};
  for (const int modes : options.real_poles) {
    const auto errors = real_errors(facts.real, modes);
    json["real_poles"].push_back({{"modes", modes}, {"median", median(errors)}, {"fit_error", errors}});
  }
  return json;
}

void print_table(const SpectralOptions& options, const Facts& facts) {
  fmt::print("Hankel filters of length {}, {} modes per channel, init {}\n\n", options.length, options.modes,
             options.init);
  fmt::print("{:>4}  {:>11}  {:>11}  {:>12}  {:>10}  {:>16}\n", "k", "sigma", "left over", "sign changes", "fit error",
             "slowest (tokens)");
  // Below this, the difference of two numbers near the trace is mostly rounding error.
  constexpr double kResolvedShare = 1e-10;
  double left_over = facts.filters.trace;
  for (std::size_t k = 0; k < facts.channels.size(); ++k) {
    const ChannelFacts& channel = facts.channels[k];
    left_over -= facts.filters.sigma[k];
    const double share = left_over / facts.filters.trace;
    fmt::print("{:>4}  {:>11.4e}  {:>11}  {:>12}  {:>10.3g}  {:>16.1f}\n", k + 1, facts.filters.sigma[k],
               share > kResolvedShare ? fmt::format("{:.4e}", share) : "< 1e-10", channel.sign_changes,
               channel.fit_error, channel.slowest);
  }
  fmt::print("\ntrace {:.10g}; \"left over\" is the share of it beyond channel k\n", facts.filters.trace);
  fmt::print("\nprojection plus fit, of the trace\n{:>4}  {:>8}  {:>11}  {:>11}  {:>11}\n", "tier", "channels", "tail",
             "fit", "error");
  for (const auto& tier : facts.tiers) {
    fmt::print("{:>4}  {:>8}  {:>11.4e}  {:>11.4e}  {:>11.4e}\n", tier.name, tier.channels,
               tier.error.tail / facts.filters.trace, tier.error.fit / facts.filters.trace,
               tier.error.total() / facts.filters.trace);
  }
  if (options.real_poles.empty()) return;
  fmt::print("\nfit error with positive real poles\n{:>4}", "k");
  for (const int modes : options.real_poles) fmt::print("  {:>9}", fmt::format("m = {}", modes));
  fmt::print("\n");
  for (int k = 0; k < facts.real.channels; ++k) {
    fmt::print("{:>4}", k + 1);
    for (const int modes : options.real_poles) fmt::print("  {:>9.2g}", facts.real.error(k, modes));
    fmt::print("\n");
  }
  fmt::print("{:>4}", "all");
  for (const int modes : options.real_poles) fmt::print("  {:>9.2g}", median(real_errors(facts.real, modes)));
  fmt::print("  median\n");
}

// Rotating poles by group of channels; real poles, whose zero frequency has no place on a logarithmic axis, along its
// bottom.
plot::Panel draw_poles(const Facts& facts) {
  constexpr std::size_t kGroup = 8;
  plot::Panel panel{"Poles",
                    {.title = "e-folding time (tokens)", .scale = plot::Scale::Log},
                    {.title = "|frequency| (rad/token)", .scale = plot::Scale::Log}};
  plot::Series real{.name = "real", .mark = plot::Mark::Points, .color = 6};
  double lowest = 1;
  for (std::size_t first = 0; first < facts.channels.size(); first += kGroup) {
    const std::size_t last = std::min(first + kGroup, facts.channels.size());
    plot::Series group{.name = fmt::format("k={}–{}", first + 1, last), .mark = plot::Mark::Points};
    for (std::size_t k = first; k < last; ++k) {
      for (const auto& pole : facts.channels[k].poles) {
        const double frequency = std::abs(std::arg(pole));
        plot::Series& series = frequency > 0 ? group : real;
        series.x.push_back(-1.0 / std::log(std::abs(pole)));
        series.y.push_back(frequency);
        if (frequency > 0) lowest = std::min(lowest, frequency);
      }
    }
    panel.series.push_back(std::move(group));
  }
  std::ranges::fill(real.y, 0.5 * lowest);
  panel.series.push_back(std::move(real));
  return panel;
}

plot::Figure draw(const SpectralOptions& options, const Facts& facts) {
  std::vector<double> index;
  std::vector<double> errors;
  for (std::size_t k = 0; k < facts.channels.size(); ++k) {
    index.push_back(static_cast<double>(k + 1));
    errors.push_back(facts.channels[k].fit_error);
  }

  plot::Panel decay{"Eigenvalues", {.title = "channel k"}, {.title = "sigma_k", .scale = plot::Scale::Log}, {}};
  decay.series.push_back({.x = index, .y = facts.filters.sigma, .mark = plot::Mark::LineAndPoints});

  plot::Panel shapes{"First filters", {.title = "lag + 1", .scale = plot::Scale::Log}, {.title = "phi_k"}, {}};
  std::vector<double> lags;
  for (std::int64_t t = 0; t < options.length; ++t) lags.push_back(static_cast<double>(t + 1));
  for (int k = 0; k < std::min(6, options.channels); ++k) {
    const auto filter = facts.filters.filter(k);
    shapes.series.push_back({.name = fmt::format("k={}", k + 1), .x = lags, .y = {filter.begin(), filter.end()}});
  }

  plot::Panel fits{"Fit", {.title = "channel k"}, {.title = "relative error", .scale = plot::Scale::Log}, {}};
  fits.series.push_back({.x = index, .y = errors, .mark = plot::Mark::LineAndPoints, .color = 1});

  return {.title = fmt::format("Spectral filters: length {}, {} modes, init {}", options.length, options.modes,
                               options.init),
          .panels = {std::move(decay), std::move(shapes), std::move(fits), draw_poles(facts)}};
}

void run(const SpectralOptions& options) {
  check_output_file(options.svg);
  const Facts facts = measure(options);
  if (!options.svg.empty()) write_durably(options.svg, plot::to_svg(draw(options, facts)));
  if (options.json) {
    fmt::print("{}\n", to_text(to_json(options, facts)));
  } else {
    print_table(options, facts);
  }
}

}  // namespace

void add_spectral(Verb& app) {
  auto* verb = app.add_subcommand("spectral", "spectral filters, the modes that start a model, and how well they fit");
  auto options = std::make_shared<SpectralOptions>();
  add_number(*verb, "--length", options->length, "filter length in tokens", kMinFilterLength, kMaxFilterLength)
      ->capture_default_str();
  add_number(*verb, "--channels", options->channels, "number of channels", 1, 1 << 16)->capture_default_str();
  add_number(*verb, "--modes", options->modes, "modes per channel", 1, 1 << 16)->capture_default_str();
  verb->add_option("--init", options->init, fmt::format("initialisation: {}", fmt::join(modal_init_names(), ", ")))
      ->capture_default_str();
  add_number(*verb, "--real-poles", options->real_poles,
             "numbers of positive real poles to fit with as well, instead of rotations", 1, 1000)
      ->delimiter(',');
  add_seed(*verb, options->seed, "seed of the random initialisations");
  verb->add_flag("--json", options->json, "print JSON");
  verb->add_option("--svg", options->svg, "also draw the figures to this file")->type_name("FILE");
  verb->footer(
      "Example: essh spectral --length 2048 --channels 32 --modes 8 --svg spectral.svg\n"
      "         essh spectral --channels 24 --real-poles 8,16,32");
  verb->callback([options] { run(*options); });
}

}  // namespace essh::verbs
