#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <fstream>

#include "essh/base/file.h"
#include "essh/base/json.h"
#include "essh/base/sha256.h"
#include "essh/decode/session.h"
#include "tests/fuzz/driver.h"
#include "tests/fuzz/scratch_folder.h"
#include "tests/fuzz/tensor_image.h"
#include "tests/model/small_model.h"

namespace essh {
namespace {
namespace fs = std::filesystem;

StoredModel model_of(ModelConfig config) {
  LoadedModel model{config, Parameters<float>(config)};
  fill_randomly(model.parameters, 3);
  return StoredModel(std::move(model), "a model");
}

// A damaged state of `generate --state-out`, sometimes with a matching checksum. It is refused, or the session
// continues from it.
class StateFuzzer {
 public:
  explicit StateFuzzer(std::uint64_t seed)
      : path_(fuzz::scratch_folder() / fmt::format("essh-fuzz-state-{}-{}", ::getpid(), seed)),
        stream_(std::make_unique<Stream>(cpu_stream(1))),
        mutator_(seed, {"{",
                        "}",
                        "[",
                        "]",
                        ",",
                        ":",
                        "\"",
                        "\"position\":\"7\"",
                        "\"position\":\"-1\"",
                        "\"logits\":",
                        "\"recent\":",
                        "\"part.0\":",
                        "\"part.9\":",
                        "\"F32\"",
                        "\"I32\"",
                        "\"U8\"",
                        "\"float32\"",
                        "\"bfloat16\"",
                        "\"state\"",
                        "9223372036854775807",
                        "9223372036854775800",
                        "4611686018427387911",
                        "1000000000000",
                        "null",
                        "\xff"}) {
    for (const auto& config : {small_config(), small_transformer()})
      engines_.push_back(std::make_unique<Engine>(model_of(config), *stream_));
    for (std::size_t e = 0; e < engines_.size(); ++e) {
      for (const std::size_t tokens : {0, 3, 40}) {
        Session session(*engines_[e], full(e));
        session.feed(random_tokens(tokens, engines_[e]->config().vocab_size, 1));
        session.save(path_, {.seed = 5, .position = 2, .recent = {1, 2, 3}});
        seeds_.push_back({e, fuzz::TensorImage::of(read_text(path_, 1 << 24))});
      }
    }
  }
  StateFuzzer(StateFuzzer&&) = default;
  ~StateFuzzer() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove(path_, ignored);
  }

  void operator()() {
    const auto& [engine, seed] = mutator_.pick(seeds_);
    auto image = seed;
    do image.mutate(mutator_, mutator_.pick(seeds_).second);
    while (mutator_.one_in(4));
    if (mutator_.one_in(2)) sign(image);
    auto file = image.file();
    if (mutator_.one_in(16)) mutator_.mutate(file, seed.header);
    std::ofstream(path_, std::ios::binary).write(file.data(), static_cast<std::streamsize>(file.size()));
    Session session(*engines_[engine], full(engine));
    const auto sampler = session.restore(path_);
    Sampler resumed({.temperature = 1, .seed = sampler.seed});
    resumed.resume(sampler);
    const std::int32_t token = 1;
    session.feed({&token, 1});
    session.feed(std::vector<std::int32_t>(20, 2));
    if (session.position() < 21) throw std::logic_error("the position is not the state's");
    bool finite = true;
    for (const float logit : session.logits()) finite = finite && std::isfinite(logit);
    if (finite) resumed.draw(session.logits());
  }

 private:
  Tier full(std::size_t engine) const { return find_tier(engines_[engine]->config(), "full"); }

  // Writes the checksum of these contents into the header, if the header can still be parsed.
  void sign(fuzz::TensorImage& image) const {
    try {
      const auto bytes = image.file();
      const auto file = SafetensorsFile::from_memory(std::as_bytes(std::span(bytes)), "input");
      auto json = parse_json(image.header, "header");
      Sha256 hash;
      const auto add = [&](const std::string& name) {
        const auto* info = file.find(name);
        if (info == nullptr) return false;
        std::vector<std::byte> values(info->bytes());
        file.read(*info, values);
        hash.update(values);
        return true;
      };
      for (int part = 0; add(fmt::format("part.{}", part));) ++part;
      add("logits");
      add("recent");
      const auto& metadata = file.metadata();
      const std::uint64_t numbers[] = {std::stoull(metadata.at("seed")), std::stoull(metadata.at("draws")),
                                       std::stoull(metadata.at("position"))};
      hash.update(std::as_bytes(std::span(numbers)));
      json["__metadata__"]["sha256"] = hash.hex();
      image.header = to_text(json);
    } catch (const std::exception&) {
    }
  }

  fs::path path_;
  std::unique_ptr<Stream> stream_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<std::pair<std::size_t, fuzz::TensorImage>> seeds_;
  fuzz::Mutator mutator_;
};

const fuzz::Registered<StateFuzzer> kStateFuzzer("state");

}  // namespace
}  // namespace essh
