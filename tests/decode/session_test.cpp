#include "essh/decode/session.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>

#include "essh/base/file.h"
#include "essh/model/cost.h"
#include "essh/model/initialise.h"
#include "tests/model/small_model.h"
#include "tests/sanitized.h"

namespace essh {
namespace {
namespace fs = std::filesystem;

// The fitted initial modes (poles up to 0.9999) and gates that depend on the input.
StoredModel make_family(std::string hash = "a") {
  ModelConfig config = preset("tiny");
  config.vocab_size = 300;
  config.hidden_size = 64;
  config.intermediate_size = 192;
  config.sliding_attention.num_attention_heads = 1;
  config.sliding_window = 100;
  config.elastic.ffn.full = 192;
  LoadedModel model{config, Parameters<float>(config)};
  initialise(model.parameters, config, 3);
  Rng rng(9);
  const auto& tensors = model.parameters.layout().tensors();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].role != Role::Matrix && tensors[i].role != Role::Blend) continue;
    for (auto& x : model.parameters.tensor(i)) x += static_cast<float>(0.05 * rng.normal());
  }
  return StoredModel(std::move(model), std::move(hash));
}

double relative_error(std::span<const float> a, std::span<const float> b) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    size += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / size);
}

std::span<const float> floats(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
}

struct SessionTest : ::testing::Test {
  Stream stream = cpu_stream(2);
  Engine engine{make_family(), stream};
  fs::path folder;
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "essh-session-XXXXXX").string();
    folder = ::mkdtemp(pattern.data());
  }
  void TearDown() override { fs::remove_all(folder); }
};

TEST_F(SessionTest, RecurrentEqualsChunkedOver4096Positions) {
  const auto tokens = random_tokens(kSanitized ? 1100 : 4096, 300, 4);  // three chunks at least
  for (const char* name : {"T1", "T10"}) {
    const auto tier = find_tier(engine.config(), name);
    std::vector<std::vector<float>> parallel;
    all_logits(engine, tier, tokens, LogitsPath::Parallel, [&](Index first, Matrix<const float> logits) {
      EXPECT_EQ(first, static_cast<Index>(parallel.size()));
      for (Index r = 0; r < logits.rows; ++r) parallel.emplace_back(logits.row(r), logits.row(r) + logits.cols);
    });
    ASSERT_EQ(parallel.size(), tokens.size());
    double worst = 0;
    all_logits(engine, tier, tokens, LogitsPath::Recurrent, [&](Index first, Matrix<const float> logits) {
      worst = std::max(worst, relative_error({logits.row(0), 300}, parallel[static_cast<std::size_t>(first)]));
    });
    EXPECT_LE(worst, 1e-5) << name;
  }
}

TEST_F(SessionTest, AnySplitOfAPromptGivesTheState) {
  const auto tokens = random_tokens(700, 300, 5);
  const auto tier = find_tier(engine.config(), "T4");
  Session whole(engine, tier);
  whole.feed(tokens);
  Rng rng(6);
  for (int round = 0; round < 6; ++round) {
    Session parts(engine, tier);
    for (std::size_t first = 0; first < tokens.size();) {
      const auto size = std::min<std::size_t>(tokens.size() - first, 1 + rng.below(round < 3 ? 200 : 7));
      parts.feed(std::span(tokens).subspan(first, size));
      first += size;
    }
    EXPECT_EQ(parts.position(), whole.position());
    const auto a = parts.snapshot(), b = whole.snapshot();
    ASSERT_EQ(a.parts.size(), b.parts.size());
    for (std::size_t i = 0; i < a.parts.size(); ++i)
      EXPECT_LE(relative_error(floats(a.parts[i]), floats(b.parts[i])), 1e-5);
    EXPECT_LE(relative_error(parts.logits(), whole.logits()), 1e-5);
  }
}

TEST_F(SessionTest, RestoredStateContinuesExactly) {
  const auto tokens = random_tokens(150, 300, 7);
  const auto tier = find_tier(engine.config(), "T4");
  Session first(engine, tier);
  first.feed(tokens);
  first.save(folder / "state");
  Session second(engine, tier);
  second.restore(folder / "state");
  EXPECT_EQ(second.position(), 150);
  EXPECT_TRUE(std::equal(first.logits().begin(), first.logits().end(), second.logits().begin()));
  const std::int32_t next = 17;
  first.feed({&next, 1});
  second.feed({&next, 1});
  EXPECT_TRUE(std::equal(first.logits().begin(), first.logits().end(), second.logits().begin()));
}

TEST_F(SessionTest, TwoHalvesThroughAFileDrawWhatOneRunDraws) {
  const auto prompt = random_tokens(20, 300, 7);
  const auto tier = find_tier(engine.config(), "T4");
  const auto draw = [&](Session& session, Sampler& sampler, int count) {
    std::vector<std::int32_t> drawn;
    for (int i = 0; i < count; ++i) {
      drawn.push_back(sampler.draw(session.logits()));
      sampler.see(drawn.back());
      session.feed({&drawn.back(), 1});
    }
    return drawn;
  };
  for (const SamplingOptions& options : {SamplingOptions{.repetition_penalty = 3},
                                         SamplingOptions{.temperature = 1, .repetition_penalty = 1.5, .seed = 5}}) {
    Session whole(engine, tier), first(engine, tier), second(engine, tier);
    Sampler one(options), before(options), after(options);
    for (const auto token : prompt) one.see(token), before.see(token);
    whole.feed(prompt);
    first.feed(prompt);
    auto halves = draw(first, before, 9);
    first.save(folder / "state", before.state());
    after.resume(second.restore(folder / "state"));
    const auto rest = draw(second, after, 11);
    halves.insert(halves.end(), rest.begin(), rest.end());
    EXPECT_EQ(halves, draw(whole, one, 20));
  }
}

// Fault M10: a damaged or foreign state file.
TEST_F(SessionTest, WrongOrDamagedStatesAreRefused) {
  const auto tokens = random_tokens(10, 300, 8);
  Session session(engine, find_tier(engine.config(), "T4"));
  session.feed(tokens);
  const auto path = folder / "state";
  session.save(path);
  const auto message = [&](Session& target) {
    try {
      target.restore(path);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  Session other_tier(engine, find_tier(engine.config(), "T5"));
  EXPECT_NE(message(other_tier).find("saved at tier \"T4\""), std::string::npos) << message(other_tier);
  Engine other_model(make_family("b"), stream);
  Session other(other_model, find_tier(engine.config(), "T4"));
  EXPECT_NE(message(other).find("another model"), std::string::npos);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-100, std::ios::end);
  const auto byte = static_cast<char>(~file.get());
  file.seekp(-100, std::ios::end);
  file.put(byte);
  file.close();
  EXPECT_NE(message(session).find("damaged"), std::string::npos);
  fs::resize_file(path, fs::file_size(path) - 1);
  EXPECT_NE(message(session), "accepted");
  EXPECT_EQ(session.position(), 10) << "a refused file must not touch the session";
}

// The window of 100 tokens is full, so caches of later positions have the same size.
TEST_F(SessionTest, APositionIsPartOfTheChecksumAndHasABound) {
  const auto tier = find_tier(engine.config(), "T4");
  Session session(engine, tier);
  session.feed(random_tokens(123, 300, 8));
  const auto path = folder / "state";
  session.save(path);
  auto bytes = read_text(path, 1 << 24);
  bytes[bytes.find("\"position\":\"123\"") + 13] = '4';
  write_durably(path, bytes);
  try {
    session.restore(path);
    FAIL() << "a changed position was accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("damaged"), std::string::npos) << error.what();
  }
  auto state = session.snapshot();
  for (const Index position : {kLongestSequence + 1, std::numeric_limits<Index>::max(), Index{-1}}) {
    state.position = position;
    EXPECT_THROW(engine.restore(tier, state), Error) << position;
  }
}

TEST_F(SessionTest, OneCapacityAloneComputesWhatTheFamilyDoes) {
  const auto tier = find_tier(engine.config(), "T4");
  Engine cut(engine.model().cut(tier.capacity), stream);
  EXPECT_EQ(full_capacity(cut.config()), tier.capacity);
  EXPECT_EQ(ParameterLayout(cut.config()).parameters(), cost_of(engine.config(), tier.capacity).parameters);
  Session family(engine, tier), alone(cut, tier);
  const auto tokens = random_tokens(90, engine.config().vocab_size, 2);
  for (auto* session : {&family, &alone}) {
    session->feed(std::span(tokens).first(80));
    for (std::size_t i = 80; i < tokens.size(); ++i) session->feed({&tokens[i], 1});
  }
  EXPECT_TRUE(std::ranges::equal(family.logits(), alone.logits()));
  EXPECT_EQ(family.snapshot().parts, alone.snapshot().parts);
}

TEST_F(SessionTest, TokensOutsideTheVocabularyAreRefused) {
  Session session(engine, find_tier(engine.config(), "T1"));
  for (const std::int32_t token : {-1, 300, 2000000000}) EXPECT_THROW(session.feed({&token, 1}), Error);
  EXPECT_THROW(session.logits(), Error);
}

}  // namespace
}  // namespace essh
