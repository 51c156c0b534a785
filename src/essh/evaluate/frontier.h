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

// Cost and quality of one capacity that could be deployed.
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
  std::optional<double> nll_difference = {};  // nll - nll of the family's full capacity, if that is a point
  double perplexity = 0;                      // 0: not measured
  double bits_per_byte = 0;                   // 0: not known
  TierLatency latency = {};
  std::string dominated_by = {};
  std::string model_hash = {};
  std::string family_hash = {};                // hash of the family; of an export, its parent's
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
  ResultProvenance provenance = {};  // its model_hash is empty for several models; points have their own
  std::vector<FrontierPoint> points = {};

  bool several_models() const;
  // Names of the further figures of all points, sorted.
  std::vector<std::string> quality_columns() const;
  // "T4", or for several models with the folder: "exports/T4".
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

// Measures the costs of some tiers of one model. Calls `progress` before each round of a tier; without it, draws a
// progress line.
std::vector<FrontierPoint> measure_costs(const StoredModel& stored, const std::string& model, const Family& family,
                                         const std::vector<Tier>& tiers, Stream& stream, EngineOptions engine,
                                         const LatencyOptions& options, const LatencyProgress& progress = {});
// Adds quality to the points of measure_costs() for the same tiers.
void add_quality(std::span<FrontierPoint> points, const PerplexityReport& report);
// Adds each figure to the points of its model and tier. Returns how many figures found a point.
std::size_t add_quality(Frontier& frontier, const std::vector<QualityFigure>& figures);
// Sets nll_difference against the full capacity of the same family, in any folder.
void compare_with_full(Frontier& frontier);
// A point is dominated if another is not worse in perplexity, parameters and decoding time, and better in one of them.
// Points without perplexity do not take part.
void mark_dominated(Frontier& frontier);

std::string to_table(const Frontier& frontier);
std::string to_csv(const Frontier& frontier);
// The fields above and "points"; values that were not measured are absent.
Json to_json(const Frontier& frontier);
// Inverse of to_json(). `place` starts error messages.
Frontier frontier_from_json(const Json& json, const std::string& place);
// Two panels: perplexity against parameters and against decoding time, or, without perplexity, decoding time and memory
// against parameters. One more panel for each further figure, against parameters.
plot::Figure draw(const Frontier& frontier);

}  // namespace essh
