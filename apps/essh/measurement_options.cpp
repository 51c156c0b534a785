#include "apps/essh/measurement_options.h"

#include <limits>

#include "apps/essh/number_option.h"
#include "essh/base/machine.h"

namespace essh::verbs {

void MeasurementOptions::add_to(Verb& verb, const std::string& data_help) {
  verb.add_option("--data", data, data_help + ": a prepared dataset, or files of text");
  add_number(verb, "--context", context, "tokens a window predicts, from nothing", 1, std::int64_t{1} << 24)
      ->capture_default_str();
  add_number(verb, "--windows", windows, "only the first so many (default: all)", 1, std::int64_t{1} << 32);
  verb.add_option("--tokenizer", tokenizer, "a tokenizer for text files, when the model folder has none");
  add_number(verb, "--depth", latency.depth, "tokens read before decoding is timed; also the timed prompt", 1,
             Index{1} << 24)
      ->capture_default_str();
  add_number(verb, "--steps", latency.steps, "timed decoding steps", 1, 1 << 20)->capture_default_str();
  add_number(verb, "--rounds", latency.rounds, "over all tiers, that share the steps; the best counts", 1, 1 << 20)
      ->capture_default_str();
  device.add_to(verb);
}

Frontier MeasurementOptions::begin(Stream& stream) const {
  auto* cpu = stream.cpu();
  return {.depth = latency.depth,
          .threads = cpu ? cpu->pool().threads() : 1,
          .processor = cpu ? this_processor().model : stream.description()};
}

std::string MeasurementOptions::add_perplexity(const StoredModel& stored, const std::filesystem::path& folder,
                                               const std::vector<Tier>& tiers, Stream& stream, Frontier& frontier,
                                               std::span<FrontierPoint> points) const {
  const auto most = windows > 0 ? windows * context + 1 : std::numeric_limits<std::int64_t>::max();
  const auto text =
      EvaluationText::open(data, folder, tokenizer, static_cast<TokenId>(stored.config().eos_token_id), most);
  Engine engine(stored, stream, device.engine());
  const auto report = measure_perplexity(engine, text,
                                         {.tiers = tiers,
                                          .context = context,
                                          .windows = windows,
                                          .full_parameters = family_of(stored, folder).full_parameters});
  add_quality(points, report);
  frontier.data = text.name();
  frontier.context = report.context;
  frontier.tokens = report.tokens;
  return text.fingerprint();
}

}  // namespace essh::verbs
