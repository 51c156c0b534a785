#include "essh/evaluate/channels.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "essh/base/json.h"
#include "essh/base/progress.h"
#include "essh/config/fields.h"
#include "essh/evaluate/perplexity.h"
#include "essh/model/model.h"
#include "essh/model/spectral_mixer.h"
#include "essh/train/master_weights.h"

namespace essh {
namespace {

double softplus(double x) {
  return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
}

std::vector<Index> spectral_layers(const ModelConfig& config) {
  std::vector<Index> layers;
  for (Index layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (config.kind(layer) == MixerKind::Spectral) layers.push_back(layer);
  }
  return layers;
}

// Perplexity with one channel zeroed in every spectral layer, by the columns of its values in out_proj.
double perplexity_without(const LoadedModel& model, Index channel, const EvaluationText& text,
                          const PerplexityOptions& options, Stream& stream) {
  LoadedModel cut{model.config, model.parameters};
  const auto& layout = cut.parameters.layout();
  const auto width = static_cast<std::size_t>(model.config.channel_width);
  for (const auto layer : channel < 0 ? std::vector<Index>() : spectral_layers(model.config)) {
    const auto index = layout.find(layer, "mixer.out_proj.weight");
    const auto values = cut.parameters.tensor(index);
    const auto columns = static_cast<std::size_t>(layout.tensors()[index].cols);
    for (std::size_t row = 0; row < values.size() / columns; ++row)
      std::fill_n(
          values.begin() + static_cast<std::ptrdiff_t>(row * columns + static_cast<std::size_t>(channel) * width),
          width, 0.0f);
  }
  Engine engine(StoredModel(std::move(cut)), stream, {.precision = Precision::Float32});
  return measure_perplexity(engine, text, options).tiers.front().perplexity;
}

// Sums over tokens, by spectral layer: z^2 by column, exp(-clock) by mode.
struct Activations {
  std::vector<std::vector<double>> squares, clocks;
  double tokens = 0;
};

void add(Stream& stream, Matrix<const float> values, std::vector<double>& sums, double (*map)(double)) {
  sums.resize(static_cast<std::size_t>(values.cols));
  // The last row may be shorter than the stride.
  std::vector<float> all(static_cast<std::size_t>((values.rows - 1) * values.stride + values.cols));
  stream.copy(all.data(), values.data, all.size() * sizeof(float));
  for (Index r = 0; r < values.rows; ++r) {
    for (Index c = 0; c < values.cols; ++c)
      sums[static_cast<std::size_t>(c)] +=
          map(static_cast<double>(all[static_cast<std::size_t>(r * values.stride + c)]));
  }
}

Activations observe(const LoadedModel& loaded, const EvaluationText& text, Index windows, const ChannelOptions& options,
                    Stream& stream) {
  const Model<float> model(loaded.config);
  MasterWeights<float> weights(model.layout(), stream);
  weights.set({loaded.parameters.data(), static_cast<std::size_t>(loaded.parameters.layout().size())});
  const auto layers = spectral_layers(loaded.config);
  Activations found;
  found.squares.resize(layers.size());
  found.clocks.resize(layers.size());
  Arena arena(stream.device());
  for (Index first = 0; first < windows; first += options.batch) {
    const Index count = std::min(options.batch, windows - first);
    std::vector<std::int32_t> inputs;
    for (Index w = first; w < first + count; ++w) {
      std::vector<TokenId> window(static_cast<std::size_t>(options.context));
      text.read(w * (options.context + 1), window);
      inputs.insert(inputs.end(), window.begin(), window.end());
    }
    arena.release();
    const auto tokens = arena.vector<std::int32_t>(static_cast<Index>(inputs.size()));
    upload(stream, inputs, tokens);
    Model<float>::Tape tape;
    model.forward({stream, arena, full_capacity(loaded.config), count, options.context}, weights.weights(), tokens,
                  &tape);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const auto& kept =
          static_cast<const SpectralTape<float>&>(*tape.blocks[static_cast<std::size_t>(layers[i])].mixer);
      add(stream, kept.z, found.squares[i], [](double z) { return z * z; });
      add(stream, kept.clock, found.clocks[i], [](double clock) { return std::exp(-clock); });
    }
    found.tokens += static_cast<double>(inputs.size());
  }
  return found;
}

// Ranks from 1; equal values share their mean rank.
std::vector<double> ranks_of(const std::vector<double>& values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return values[i]; });
  std::vector<double> ranks(values.size());
  for (std::size_t first = 0; first < order.size();) {
    std::size_t end = first;
    while (end < order.size() && values[order[end]] == values[order[first]]) ++end;
    for (std::size_t i = first; i < end; ++i) ranks[order[i]] = static_cast<double>(first + end + 1) / 2;
    first = end;
  }
  return ranks;
}

}  // namespace

double negative_spearman(const std::vector<double>& importance) {
  const auto ranks = ranks_of(importance);
  const auto count = static_cast<double>(ranks.size());
  const double mean = (count + 1) / 2;
  double covariance = 0, index_squares = 0, rank_squares = 0;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const double x = static_cast<double>(i + 1) - mean, y = ranks[i] - mean;
    covariance += x * y;
    index_squares += x * x;
    rank_squares += y * y;
  }
  return rank_squares > 0 ? -covariance / std::sqrt(index_squares * rank_squares) : 0;
}

double first_share(const std::vector<double>& importance, Index count) {
  double first = 0, all = 0;
  for (std::size_t i = 0; i < importance.size(); ++i) {
    const double value = std::max(importance[i], 0.0);
    all += value;
    if (static_cast<Index>(i) < count) first += value;
  }
  return all > 0 ? first / all : 0;
}

ChannelReport measure_channels(const LoadedModel& model, const std::string& hash, const EvaluationText& text,
                               const ChannelOptions& options, Stream& stream, ResultJournal& journal) {
  const auto& config = model.config;
  ChannelReport report{.options = options};
  report.layers = spectral_layers(config);
  if (report.layers.empty()) fail(ErrorKind::Usage, "evaluate channels: the model has no spectral layers");
  report.windows = std::min<Index>(options.windows, text.tokens() / (options.context + 1));
  if (report.windows < 1)
    fail(ErrorKind::Usage, "{}: {} tokens, one window takes {}; give more text or a smaller --context", text.name(),
         text.tokens(), options.context + 1);

  const auto channels = static_cast<std::size_t>(config.spectral_channels),
             modes = static_cast<std::size_t>(config.spectral_modes),
             width = static_cast<std::size_t>(config.channel_width);
  const auto found = observe(model, text, report.windows, options, stream);
  report.energy.resize(channels);
  for (std::size_t l = 0; l < report.layers.size(); ++l) {
    std::vector<double> energy(channels);
    for (std::size_t column = 0; column < channels * width; ++column)
      energy[column / width] += found.squares[l][column] / (found.tokens * static_cast<double>(width));
    for (std::size_t k = 0; k < channels; ++k)
      report.energy[k] += energy[k] / static_cast<double>(report.layers.size());
    report.layer_energy.push_back(std::move(energy));
    const auto decay = model.parameters.tensor(model.parameters.layout().find(report.layers[l], "mixer.decay"));
    for (std::size_t i = 0; i < channels * modes; ++i) {
      const double gamma = softplus(static_cast<double>(decay[i]));
      report.modes.push_back({.layer = report.layers[l],
                              .channel = static_cast<Index>(i / modes),
                              .mode = static_cast<Index>(i % modes),
                              .horizon = 1 / gamma,
                              .attenuation = std::exp(-gamma) * found.clocks[l][i] / found.tokens});
    }
  }
  if (!options.knock_out) return report;

  const PerplexityOptions ppl{.tiers = {{.name = "full", .budget = 1, .capacity = full_capacity(config)}},
                              .context = options.context,
                              .windows = report.windows,
                              .batch = options.batch,
                              .disjoint = true};
  const auto measured = [&](Index channel) {
    const auto key = fmt::format("channels {} text {} context {} windows {} without {}", hash, text.fingerprint(),
                                 options.context, report.windows, channel);
    if (const auto* kept = journal.find(key)) return kept->get<double>();
    const double value = perplexity_without(model, channel, text, ppl, stream);
    journal.add(key, value);
    return value;
  };
  report.perplexity = measured(-1);
  Progress progress("knock-out", static_cast<double>(channels), "channel");
  for (std::size_t k = 0; k < channels; ++k) {
    report.knock_out.push_back(measured(static_cast<Index>(k)) - report.perplexity);
    progress.update(static_cast<double>(k + 1));
  }
  progress.finish();
  return report;
}

Json to_json(const ChannelReport& report, const std::string& model, const ResultProvenance& provenance) {
  Json modes = Json::array(), layers = Json::array();
  for (const auto& m : report.modes)
    modes.push_back({{"layer", m.layer},
                     {"channel", m.channel},
                     {"mode", m.mode},
                     {"horizon", m.horizon},
                     {"attenuation", m.attenuation}});
  for (std::size_t l = 0; l < report.layers.size(); ++l)
    layers.push_back({{"layer", report.layers[l]}, {"energy", report.layer_energy[l]}});
  const auto first = report.options.first;
  Json json = {{"model", model},
               {"protocol", "channels"},
               {"context", report.options.context},
               {"windows", report.windows},
               {"energy", report.energy},
               {"energy_negative_spearman", negative_spearman(report.energy)},
               {"energy_first_share", first_share(report.energy, first)},
               {"first", first},
               {"layers", std::move(layers)},
               {"modes", std::move(modes)},
               {"provenance", write_fields(provenance)}};
  if (!report.knock_out.empty()) {
    json["perplexity"] = report.perplexity;
    json["knock_out"] = report.knock_out;
    json["knock_out_negative_spearman"] = negative_spearman(report.knock_out);
    json["knock_out_first_share"] = first_share(report.knock_out, first);
  }
  return json;
}

plot::Figure draw(const ChannelReport& report, const std::string& title) {
  const auto count = report.energy.size();
  std::vector<double> channels(count), cumulative(count);
  double sum = 0;
  const double all = std::accumulate(report.energy.begin(), report.energy.end(), 0.0);
  for (std::size_t k = 0; k < count; ++k) {
    channels[k] = static_cast<double>(k + 1);
    cumulative[k] = all > 0 ? (sum += report.energy[k]) / all : 0;
  }
  plot::Figure figure{.title = title};
  if (!report.knock_out.empty())
    figure.panels.push_back({.title = "knock-out",
                             .x = {.title = "channel"},
                             .y = {.title = "perplexity increase"},
                             .series = {{.x = channels, .y = report.knock_out, .mark = plot::Mark::LineAndPoints}}});
  figure.panels.push_back({.title = "cumulative output energy",
                           .x = {.title = "channel"},
                           .y = {.title = "share", .min = 0, .max = 1},
                           .series = {{.x = channels, .y = cumulative, .mark = plot::Mark::LineAndPoints}}});
  plot::Panel horizons{.title = "horizons of the modes",
                       .x = {.title = "channel"},
                       .y = {.title = "1/gamma, tokens", .scale = plot::Scale::Log}};
  plot::Panel attenuations{.title = "attenuation with the clock",
                           .x = {.title = "channel"},
                           .y = {.title = "rho E[exp(-clock)]", .min = 0, .max = 1}};
  for (const auto layer : report.layers) {
    plot::Series horizon{.name = fmt::format("layer {}", layer), .mark = plot::Mark::Points}, attenuation = horizon;
    for (const auto& mode : report.modes) {
      if (mode.layer != layer) continue;
      horizon.x.push_back(static_cast<double>(mode.channel + 1));
      horizon.y.push_back(mode.horizon);
      attenuation.x.push_back(static_cast<double>(mode.channel + 1));
      attenuation.y.push_back(mode.attenuation);
    }
    horizons.series.push_back(std::move(horizon));
    attenuations.series.push_back(std::move(attenuation));
  }
  figure.panels.push_back(std::move(horizons));
  figure.panels.push_back(std::move(attenuations));
  return figure;
}

}  // namespace essh
