#pragma once
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "essh/base/json_fwd.h"
#include "essh/config/field.h"
#include "essh/evaluate/latency.h"
#include "essh/evaluate/perplexity.h"
#include "essh/evaluate/quality.h"
#include "essh/plot/svg.h"

namespace essh {

// One capacity that could be deployed: what it costs and how good it is.
struct FrontierPoint {
  std::string model;
  std::string tier;
  Index channels = 0;
  Index ffn = 0;
  Index parameters = 0;
  double parameter_fraction = 0;  // r, of the family's full parameters; 0: unknown
  Index file_bytes = 0;
  Index state_bytes = 0;
  Index kv_bytes = 0;
  double nll = 0;
  std::optional<double> nll_difference = {};  // nll minus that of the family's full capacity, when that is a point too
  double perplexity = 0;                      // 0: not measured
  double bits_per_byte = 0;                   // 0: not known
  TierLatency latency = {};
  std::string dominated_by = {};
  std::string model_hash = {};
  std::string family_hash = {};                // of the family that an export was cut from; a family's own
  std::map<std::string, double> quality = {};  // further figures by the name of their column
};

// The columns of the CSV file and the keys of the JSON document.
template <class Visitor>
void fields(Visitor& visit, FrontierPoint& p) {
  visit("model", p.model, Field{.help = "the folder", .required = true});
  visit("tier", p.tier, Field{.help = "the capacity's name", .required = true});
  visit("channels", p.channels, Field{.help = "spectral channels", .min = 1, .required = true});
  visit("ffn", p.ffn, Field{.help = "feed-forward units", .min = 1, .required = true});
  visit("parameters", p.parameters, Field{.help = "of the exported model", .min = 1, .required = true});
  visit("parameter_fraction", p.parameter_fraction, Field{.help = "r: of the full parameters", .min = 0, .max = 1});
  visit("file_bytes", p.file_bytes, Field{.help = "weights of an export in the model's dtype", .min = 0});
  visit("state_bytes", p.state_bytes, Field{.help = "recurrent state of a sequence, float32", .min = 0});
  visit("kv_bytes", p.kv_bytes, Field{.help = "window caches of a sequence, bf16", .min = 0});
  visit("nll", p.nll, Field{.help = "mean loss in nats", .min = 0});
  visit("nll_difference", p.nll_difference, Field{.help = "from the family's full capacity"});
  visit("perplexity", p.perplexity, Field{.help = "exp(nll)", .min = 0});
  visit("bits_per_byte", p.bits_per_byte, Field{.help = "bits per byte of text", .min = 0});
  visit("decode_ms", p.latency.decode_ms, Field{.help = "per token, median of the best round", .min = 0});
  visit("decode_ms_low", p.latency.decode_ms_low, Field{.help = "first decile", .min = 0});
  visit("decode_ms_high", p.latency.decode_ms_high, Field{.help = "ninth decile", .min = 0});
  visit("prefill_tokens_per_second", p.latency.prefill_rate, Field{.help = "of the best round", .min = 0});
  visit("weight_bytes", p.latency.weight_bytes, Field{.help = "weights as held in memory", .min = 0});
  visit("session_bytes", p.latency.session_bytes, Field{.help = "state and caches as held in memory", .min = 0});
  visit("resident_bytes", p.latency.resident_bytes, Field{.help = "growth of the process", .min = 0});
  visit("dominated_by", p.dominated_by, Field{.help = "a point at least as good, as small and as fast"});
  visit("model_hash", p.model_hash, Field{.help = "SHA-256 over the model's config and weights"});
  visit("family_hash", p.family_hash, Field{.help = "that of the family an export was cut from"});
}

struct Frontier {
  std::string data = {};  // empty: quality was not measured
  Index context = 0;      // of the perplexity windows
  Index tokens = 0;       // predicted
  Index depth = 0;        // tokens before a timed decoding step
  int threads = 0;
  std::string processor = {};
  ResultProvenance provenance = {};  // with a model's hash where there is one model; points have their own
  std::vector<FrontierPoint> points = {};

  bool several_models() const;
  // Names of the further figures of all points, sorted.
  std::vector<std::string> quality_columns() const;
  // "T4", or "exports/T4" by its folder's name where there are several models.
  std::string label(const FrontierPoint& point) const;
};

template <class Visitor>
void fields(Visitor& visit, Frontier& f) {
  visit("data", f.data, Field{.help = "the text"});
  visit("context", f.context, Field{.help = "tokens of a window", .min = 0});
  visit("tokens", f.tokens, Field{.help = "predicted", .min = 0});
  visit("depth", f.depth, Field{.help = "tokens before a timed step", .min = 0});
  visit("threads", f.threads, Field{.help = "cores used", .min = 0});
  visit("processor", f.processor, Field{.help = "where it was measured"});
  visit("provenance", f.provenance, Field{.help = "what it was measured with"});
}

// The costs of some tiers of one model, measured here.
std::vector<FrontierPoint> measure_costs(const StoredModel& stored, const std::string& model, const Family& family,
                                         const std::vector<Tier>& tiers, Stream& stream, EngineOptions engine,
                                         const LatencyOptions& options);
// Adds the quality of points that measure_costs() gave for the same tiers.
void add_quality(std::span<FrontierPoint> points, const PerplexityReport& report);
// Gives the figures to the points of the same model and tier; returns how many found one.
std::size_t add_quality(Frontier& frontier, const std::vector<QualityFigure>& figures);
// Compares the points of each family, in whichever folders they lie, with the one of its full capacity.
void compare_with_full(Frontier& frontier);
// A point is dominated by one that has no higher perplexity, no more parameters and no longer decoding time, and one of
// them less. Points of unknown quality are left out.
void mark_dominated(Frontier& frontier);

std::string to_table(const Frontier& frontier);
std::string to_csv(const Frontier& frontier);
// The fields above and "points"; what was not measured is left out.
Json to_json(const Frontier& frontier);
// Reads what to_json() gave; `place` starts the message of a failure.
Frontier frontier_from_json(const Json& json, const std::string& place);
// Two panels: perplexity against parameters and against decoding time; without quality, decoding time and memory
// against parameters. Then one for each further figure, against parameters.
plot::Figure draw(const Frontier& frontier);

}  // namespace essh
