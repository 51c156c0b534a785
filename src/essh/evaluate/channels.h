#pragma once
#include <string>
#include <vector>

#include "essh/base/json_fwd.h"
#include "essh/device/stream.h"
#include "essh/evaluate/evaluation_text.h"
#include "essh/evaluate/result_journal.h"
#include "essh/evaluate/result_provenance.h"
#include "essh/plot/svg.h"
#include "essh/store/model_folder.h"

namespace essh {

// Importance of the spectral channels of a trained model, at full capacity.
struct ChannelOptions {
  Index context = 2048;
  Index windows = 32;     // disjoint, of context + 1 tokens; fewer if the text ends
  Index batch = 4;        // windows in one pass
  Index first = 8;        // channels in the reported share
  bool knock_out = true;  // takes one pass over the text per channel
};

// One mode of one layer: gamma = softplus(decay), rho = exp(-gamma).
struct ModeHorizon {
  Index layer = 0, channel = 0, mode = 0;
  double horizon = 0;      // 1 / gamma, in tokens
  double attenuation = 0;  // rho E[exp(-clock)] over the tokens of the text
};

struct ChannelReport {
  ChannelOptions options;
  Index windows = 0;
  double perplexity = 0;               // with all channels
  std::vector<double> knock_out = {};  // by channel: increase of the perplexity with the channel zeroed in every layer
  std::vector<double> energy = {};     // by channel: mean of z^2 over tokens, values and layers
  std::vector<std::vector<double>> layer_energy = {};  // spectral layers x channels
  std::vector<Index> layers = {};                      // the spectral ones
  std::vector<ModeHorizon> modes = {};
};

// `hash` is the model_hash of the model, a part of the journal's keys.
ChannelReport measure_channels(const LoadedModel& model, const std::string& hash, const EvaluationText& text,
                               const ChannelOptions& options, Stream& stream, ResultJournal& journal);

// -Spearman(index, importance); equal values share their mean rank. 1: importance falls with the index.
double negative_spearman(const std::vector<double>& importance);
// Share of the first `count` values in the sum. Negative values count as zero.
double first_share(const std::vector<double>& importance, Index count);

Json to_json(const ChannelReport& report, const std::string& model, const ResultProvenance& provenance);
// Knock-out, cumulative energy, horizons and attenuations by channel.
plot::Figure draw(const ChannelReport& report, const std::string& title);

}  // namespace essh
