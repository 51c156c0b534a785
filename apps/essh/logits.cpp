#include <memory>

#include "apps/essh/device_options.h"
#include "apps/essh/output_file.h"
#include "apps/essh/standard_streams.h"
#include "apps/essh/verbs.h"
#include "essh/base/file.h"
#include "essh/config/fields.h"
#include "essh/decode/session.h"
#include "essh/store/provenance.h"
#include "essh/store/run_folder.h"

namespace essh::verbs {
namespace {

struct LogitsOptions {
  std::string model, tokens, out, tier = "full", path = "parallel";
  DeviceOptions device;
  bool force = false;
};

std::vector<std::int32_t> read_tokens(const std::string& path) {
  constexpr JsonLimits kLimits{.bytes = std::uint64_t{1} << 30, .values = std::uint64_t{1} << 28};
  const std::string place = path == "-" ? "standard input" : path;
  const auto json = path == "-" ? parse_json(read_standard_input(), place, kLimits) : read_json(path, kLimits);
  if (!json.is_array()) fail(ErrorKind::BadFile, "{}: expected a JSON array of token ids", place);
  std::vector<std::int32_t> tokens;
  for (std::size_t i = 0; i < json.size(); ++i)
    tokens.push_back(detail::json_value<std::int32_t>(json[i], {}, fmt::format("{}: token {}", place, i)));
  return tokens;
}

// NumPy's format 1.0: magic, a header padded to a multiple of 64 bytes, rows.
std::string npy_header(std::size_t rows, std::size_t cols) {
  std::string header = fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, cols);
  header.resize((10 + header.size() + 1 + 63) / 64 * 64 - 10 - 1, ' ');
  header += '\n';
  std::string prefix = std::string("\x93NUMPY\x01", 7) + '\0';
  prefix += static_cast<char>(header.size() & 0xff);
  prefix += static_cast<char>(header.size() >> 8);
  return prefix + header;
}

void run(const LogitsOptions& o) {
  check_output_file(o.out);
  const auto folder = model_of_run(o.model);
  OpenDevice device(o.device);
  Engine engine(StoredModel::open(folder, o.force ? NonFinite::Accept : NonFinite::Refuse), device.stream,
                o.device.engine());
  const auto tier = find_tier(folder, engine.config(), o.tier);
  const auto tokens = read_tokens(o.tokens);
  std::error_code absent;
  if (std::filesystem::equivalent(o.tokens, o.out, absent))
    fail(ErrorKind::Usage, "{}: is read from; choose another name for the logits", o.out);
  DurableFile file(o.out);
  file.write(npy_header(tokens.size(), static_cast<std::size_t>(engine.config().vocab_size)));
  const auto path = o.path == "recurrent" ? LogitsPath::Recurrent : LogitsPath::Parallel;
  all_logits(engine, tier, tokens, path, [&](Index, Matrix<const float> logits) {
    file.write(std::as_bytes(std::span(logits.data, static_cast<std::size_t>(logits.rows * logits.cols))));
  });
  file.commit();
  fmt::print("{}: logits of {} tokens at tier {}\n", o.out, tokens.size(), tier.name);
}

}  // namespace

void add_logits(Verb& app) {
  auto* verb = app.add_subcommand("logits", "logits of every position of a token sequence, as a NumPy file");
  auto o = std::make_shared<LogitsOptions>();
  verb->add_option("MODEL", o->model, "a model folder or a run")->required();
  verb->add_option("--tokens", o->tokens, "a JSON array of token ids, or - for standard input")->required();
  verb->add_option("--out", o->out, "float32 [tokens, vocabulary] in .npy format")->required();
  verb->add_option("--tier", o->tier, "T4, full, xi=0.3 or 18x1792")->capture_default_str();
  verb->add_option("--path", o->path, "parallel: chunked scan; recurrent: token by token")
      ->one_of({"parallel", "recurrent"})
      ->capture_default_str();
  o->device.add_to(*verb);
  o->device.add_state_formats(*verb);
  o->device.add_deterministic(*verb);
  verb->add_flag("--force", o->force, "run although weights are NaN or infinite");
  verb->footer("Example: essh logits models/tiny --tokens ids.json --out logits.npy --tier T4");
  verb->callback([o] { run(*o); });
}

}  // namespace essh::verbs
