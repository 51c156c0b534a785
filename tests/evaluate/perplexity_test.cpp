#include "essh/evaluate/perplexity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <numbers>

#include "essh/base/json.h"
#include "essh/base/log.h"
#include "essh/decode/session.h"
#include "essh/model/cost.h"
#include "tests/evaluate/small_engine.h"
#include "tests/store/temp_folder.h"

namespace essh {
namespace {
namespace fs = std::filesystem;

struct PerplexityTest : TempFolderTest {
  Stream stream = cpu_stream(1);
  Engine engine{small_family(), stream};
  void SetUp() override {
    log::set_level(log::Level::Quiet);
    TempFolderTest::SetUp();
  }
};

// Mean loss over windows of `context`, token by token; each window starts from an empty state.
double recurrent_nll(Engine& engine, const Tier& tier, const std::vector<TokenId>& tokens, std::size_t context,
                     std::size_t windows) {
  double sum = 0;
  for (std::size_t w = 0; w < windows; ++w) {
    all_logits(engine, tier, std::span(tokens).subspan(w * context, context), LogitsPath::Recurrent,
               [&](Index position, Matrix<const float> logits) {
                 double total = 0;
                 for (Index c = 0; c < logits.cols; ++c) total += std::exp(static_cast<double>(logits(0, c)));
                 const auto target = tokens[w * context + static_cast<std::size_t>(position) + 1];
                 sum += std::log(total) - static_cast<double>(logits(0, target));
               });
  }
  return sum / static_cast<double>(context * windows);
}

TEST_F(PerplexityTest, EqualsTheLossOfLogitsTokenByToken) {
  const auto tokens = random_tokens(150, engine.config().vocab_size, 5);
  const auto text = EvaluationText::from_tokens(tokens, "random");
  const std::vector<Tier> tiers = {find_tier(engine.config(), "1x2"), find_tier(engine.config(), "full")};
  // 150 tokens are 8 windows of 18 targets with 5 left over; with batches of 3 the last batch has 2.
  for (const Index batch : {0, 1, 3}) {
    const auto report = measure_perplexity(engine, text, {.tiers = tiers, .context = 18, .batch = batch});
    EXPECT_EQ(report.windows, 8);
    EXPECT_EQ(report.tokens, 144);
    EXPECT_EQ(report.left_out, 5);
    ASSERT_EQ(report.tiers.size(), 2u);
    for (std::size_t t = 0; t < tiers.size(); ++t) {
      const double expected = recurrent_nll(engine, tiers[t], tokens, 18, 8);
      EXPECT_NEAR(report.tiers[t].nll, expected, 1e-5 * expected) << tiers[t].name << " batch " << batch;
      EXPECT_DOUBLE_EQ(report.tiers[t].perplexity, std::exp(report.tiers[t].nll));
      EXPECT_EQ(report.tiers[t].parameters, cost_of(engine.config(), tiers[t].capacity).parameters);
      EXPECT_EQ(report.tiers[t].bits_per_byte, 0) << "the bytes are unknown";
    }
    EXPECT_NE(report.tiers[0].nll, report.tiers[1].nll);
  }
  const auto few = measure_perplexity(engine, text, {.tiers = tiers, .context = 18, .windows = 2});
  EXPECT_EQ(few.tokens, 36);
  const double expected = recurrent_nll(engine, tiers[1], tokens, 18, 2);
  EXPECT_NEAR(few.tiers[1].nll, expected, 1e-5 * expected);
}

// Windows of context + 1 tokens without overlap: 150 tokens are 7 windows of 19 with 17 left over.
TEST_F(PerplexityTest, DisjointWindowsShareNoToken) {
  const auto tokens = random_tokens(150, engine.config().vocab_size, 5);
  const std::vector<Tier> tiers = {find_tier(engine.config(), "full")};
  const auto text = EvaluationText::from_tokens(tokens, "random");
  // The same windows, each as a text of its own.
  double sum = 0;
  for (std::size_t w = 0; w < 7; ++w) {
    const std::vector<TokenId> window(tokens.begin() + static_cast<std::ptrdiff_t>(19 * w),
                                      tokens.begin() + static_cast<std::ptrdiff_t>(19 * w + 19));
    sum += recurrent_nll(engine, tiers[0], window, 18, 1);
  }
  for (const Index batch : {0, 1, 3}) {
    const auto report =
        measure_perplexity(engine, text, {.tiers = tiers, .context = 18, .batch = batch, .disjoint = true});
    EXPECT_EQ(report.windows, 7);
    EXPECT_EQ(report.tokens, 7 * 18);
    EXPECT_EQ(report.left_out, 150 - 7 * 19);
    EXPECT_NEAR(report.tiers[0].nll, sum / 7, 1e-5 * sum / 7) << batch;
    EXPECT_EQ(to_json(report, "m", {})["protocol"], "cross-domain");
  }
  // A text of exactly one window.
  const PerplexityOptions one{.tiers = tiers, .context = 149, .disjoint = true};
  EXPECT_EQ(measure_perplexity(engine, text, one).left_out, 0);
}

// Documents of several lengths, cut into pieces at any token, against one window per document.
TEST_F(PerplexityTest, StatefulReadsWholeDocuments) {
  const auto eos = static_cast<TokenId>(engine.config().eos_token_id);
  std::vector<TokenId> tokens;
  std::vector<std::vector<TokenId>> documents;
  for (const Index length : {40, 1, 7, 90}) {
    auto document = random_tokens(length, engine.config().vocab_size, static_cast<std::uint64_t>(length));
    std::ranges::replace(document, eos, eos == 0 ? 1 : eos - 1);
    document.push_back(eos);
    tokens.insert(tokens.end(), document.begin(), document.end());
    documents.push_back(document);
  }
  tokens.push_back(eos);  // a document without a target
  documents.push_back(random_tokens(20, engine.config().vocab_size, 77));
  std::ranges::replace(documents.back(), eos, eos == 0 ? 1 : eos - 1);
  tokens.insert(tokens.end(), documents.back().begin(), documents.back().end());  // without its end of text
  const auto text = EvaluationText::from_tokens(tokens, "documents");
  const std::vector<Tier> tiers = {find_tier(engine.config(), "1x2"), find_tier(engine.config(), "full")};
  for (const Index piece : {16, 1000}) {
    for (const Index batch : {1, 3}) {
      const auto report =
          measure_perplexity(engine, text, {.tiers = tiers, .context = piece, .batch = batch, .stateful = true});
      EXPECT_EQ(report.windows, 5);
      EXPECT_EQ(report.tokens, 40 + 1 + 7 + 90 + 19);
      EXPECT_EQ(report.left_out, 0);
      EXPECT_GE(report.seconds, report.forward_seconds);
      for (std::size_t t = 0; t < tiers.size(); ++t) {
        double sum = 0;
        for (const auto& document : documents)
          sum += recurrent_nll(engine, tiers[t], document, document.size() - 1, 1) *
                 static_cast<double>(document.size() - 1);
        EXPECT_NEAR(report.tiers[t].nll, sum / static_cast<double>(report.tokens), 1e-5);
      }
    }
  }
  const auto some = measure_perplexity(engine, text, {.tiers = tiers, .context = 16, .windows = 2, .stateful = true});
  EXPECT_EQ(some.tokens, 41);
  EXPECT_EQ(to_json(some, "m", {})["protocol"], "stateful");
}

TEST_F(PerplexityTest, ComparesTiersWithTheFullCapacity) {
  const auto text = EvaluationText::from_tokens(random_tokens(60, engine.config().vocab_size, 5), "random");
  const auto full = cost_of(engine.config(), full_capacity(engine.config())).parameters;
  PerplexityOptions options{.tiers = {find_tier(engine.config(), "1x2"), find_tier(engine.config(), "full")},
                            .context = 8,
                            .full_parameters = full};
  const auto both = measure_perplexity(engine, text, options);
  EXPECT_DOUBLE_EQ(both.tiers[0].fraction, static_cast<double>(both.tiers[0].parameters) / static_cast<double>(full));
  EXPECT_LT(both.tiers[0].fraction, 1);
  EXPECT_EQ(both.tiers[1].fraction, 1);
  EXPECT_EQ(*both.tiers[0].nll_difference, both.tiers[0].nll - both.tiers[1].nll);
  EXPECT_EQ(*both.tiers[1].nll_difference, 0);
  options.tiers.pop_back();
  const auto alone = measure_perplexity(engine, text, options);
  EXPECT_FALSE(alone.tiers[0].nll_difference) << "the full capacity was not measured";
  options.full_parameters = 0;
  EXPECT_TRUE(
      to_json(measure_perplexity(engine, text, options), "m", {})["results"][0]["parameter_fraction"].is_null());
}

TEST_F(PerplexityTest, JsonHasTheDocumentedShape) {
  const auto text = EvaluationText::from_tokens(random_tokens(20, engine.config().vocab_size, 5), "random");
  const auto report = measure_perplexity(engine, text, {.tiers = {find_tier(engine.config(), "full")}, .context = 8});
  const auto json = to_json(report, "a model", {});
  EXPECT_EQ(json["model"], "a model");
  ASSERT_EQ(json["results"].size(), 1u);
  std::vector<std::string> keys;
  for (const auto& [key, value] : json["results"][0].items()) keys.push_back(key);
  EXPECT_EQ(keys, (std::vector<std::string>{"tier", "parameters", "parameter_fraction", "tokens", "nll",
                                            "nll_difference", "perplexity", "bits_per_byte"}));
  EXPECT_EQ(json["results"][0]["tokens"], 16);
}

TEST_F(PerplexityTest, TooLittleTextAndForeignTokensAreErrors) {
  const PerplexityOptions options{.tiers = {find_tier(engine.config(), "full")}, .context = 16};
  const auto message = [&](std::vector<TokenId> tokens) {
    return message_of(
        [&] { measure_perplexity(engine, EvaluationText::from_tokens(std::move(tokens), "some text"), options); });
  };
  EXPECT_NE(message(random_tokens(16, 11, 1)).find("some text: 16 tokens, one window takes 17"), std::string::npos);
  EXPECT_NE(message({}).find("0 tokens"), std::string::npos);
  auto foreign = random_tokens(17, 11, 1);
  EXPECT_EQ(message(foreign), "no error");
  foreign.back() = 11;
  EXPECT_NE(message(foreign).find("vocabulary"), std::string::npos);
}

// shared/data in a folder above the source tree holds a trained family, measured by another implementation.
fs::path shared_data() {
  for (auto folder = fs::path(__FILE__).parent_path(); folder.has_relative_path(); folder = folder.parent_path()) {
    if (fs::exists(folder / "shared" / "data" / "family.tar.xz")) return folder / "shared" / "data";
  }
  return {};
}

TEST_F(PerplexityTest, AgreesWithAnIndependentImplementation) {
  const auto data = shared_data();
  if (data.empty()) GTEST_SKIP() << "no shared data";
  for (const char* archive : {"family.tar.xz", "text_valid.tar.xz"}) {
    const auto command = fmt::format("tar xJf '{}' -C '{}'", (data / archive).string(), folder.string());
    if (std::system(command.c_str()) != 0) GTEST_SKIP() << "cannot unpack " << archive;
  }
  Engine family(StoredModel::open(folder / "family1"), stream);
  const auto tokenizer = load_tokenizer(folder / "family1");
  // Measured by the other implementation in bf16 over all 384 windows: T1 87.96, T10 44.43. The first 30 windows agree
  // with these to 1%.
  constexpr Index kContext = 512, kWindows = 30;
  const auto text =
      EvaluationText::from_files({folder / "text" / "wiki_val.txt"}, *tokenizer, 0, kContext * kWindows + 1);
  EXPECT_EQ(text.tokens(), kContext * kWindows + 1);
  const std::vector<Tier> tiers = {find_tier(family.config(), "T1"), find_tier(family.config(), "T10")};
  const auto report = measure_perplexity(family, text, {.tiers = tiers, .context = kContext});
  EXPECT_EQ(report.windows, kWindows);
  EXPECT_NEAR(report.tiers[0].perplexity, 87.96, 0.01 * 87.96);
  EXPECT_NEAR(report.tiers[1].perplexity, 44.43, 0.01 * 44.43);
  // The text has about 3.3 bytes per token.
  EXPECT_NEAR(report.tiers[1].bits_per_byte, report.tiers[1].nll / std::numbers::ln2 / 3.3, 0.1);
}

}  // namespace
}  // namespace essh
