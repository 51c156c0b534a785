#include "essh/serve/console.h"

#include <gtest/gtest.h>

#include <fstream>

#include "essh/base/error.h"
#include "essh/base/json.h"
#include "essh/model/cost.h"

namespace essh::serve {
namespace {

std::string header(const HttpReply& reply, const std::string& name) {
  for (const auto& [key, value] : reply.headers) {
    if (key == name) return value;
  }
  return "";
}

TEST(Console, FilesAreKeptByTheBrowser) {
  for (const auto* path : {"/", "/console.css", "/console.js", "/console.svg"}) {
    ASSERT_TRUE(is_console(path));
    const auto reply = console_reply({.path = path});
    EXPECT_EQ(reply.status, 200);
    EXPECT_FALSE(reply.body.empty());
    const auto tag = header(reply, "ETag");
    const auto again = console_reply({.path = path, .if_none_match = tag});
    EXPECT_EQ(again.status, 304);
    EXPECT_TRUE(again.body.empty());
    EXPECT_EQ(header(again, "ETag"), tag);
  }
  EXPECT_FALSE(is_console("/v1/models"));
  EXPECT_FALSE(is_console("/console.css/"));
}

TEST(Console, NothingComesFromElsewhereAndNothingIsInline) {
  const auto policy = header(console_reply({.path = "/"}), "Content-Security-Policy");
  EXPECT_NE(policy.find("default-src 'none'"), std::string::npos);
  EXPECT_EQ(policy.find("unsafe"), std::string::npos);
  EXPECT_EQ(policy.find("http"), std::string::npos);
  const auto script = console_reply({.path = "/console.js"}).body;
  for (const auto* way : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("}) {
    EXPECT_EQ(script.find(way), std::string::npos) << way;
  }
}

class ConsoleFrontier : public ::testing::Test {
 protected:
  Json document(const std::string& text) {
    const auto path = std::filesystem::temp_directory_path() / ("console_frontier_" + std::to_string(::getpid()));
    std::ofstream(path) << text;
    Json found;
    try {
      found = frontier_document(config_, "abc", path);
    } catch (...) {
      std::filesystem::remove(path);
      throw;
    }
    std::filesystem::remove(path);
    return found;
  }
  ModelConfig config_ = preset("tiny");
};

TEST_F(ConsoleFrontier, WithoutAFileHasTheCostsOfEveryTier) {
  const auto found = frontier_document(config_, "abc", {});
  EXPECT_FALSE(found["measured"].get<bool>());
  EXPECT_FALSE(found["quality"].get<bool>());
  const auto tiers = tiers_of(config_);
  ASSERT_EQ(found["points"].size(), tiers.size());
  std::size_t i = 0;
  for (const auto& point : found["points"]) {
    const auto cost = cost_of(config_, tiers[i].capacity);
    EXPECT_EQ(point["tier"], tiers[i].name);
    EXPECT_EQ(point["parameters"], cost.parameters);
    EXPECT_EQ(point["state_bytes"], cost.state_bytes);
    ++i;
  }
}

TEST_F(ConsoleFrontier, TakesTheMeasurementsOfThisModelOnly) {
  const auto found = document(R"({"data": "text", "tokens": 7, "points": [
    {"tier": "T1", "model_hash": "abc", "perplexity": 12.5, "decode_ms": 0.5},
    {"tier": "T2", "model_hash": "other", "perplexity": 1.0},
    {"tier": "T3", "model_hash": "abc", "perplexity": "much"}]})");
  EXPECT_TRUE(found["measured"].get<bool>());
  EXPECT_TRUE(found["quality"].get<bool>());
  EXPECT_EQ(found["data"], "text");
  EXPECT_EQ(found["points"][0]["perplexity"], 12.5);
  EXPECT_FALSE(found["points"][1].contains("perplexity"));
  EXPECT_FALSE(found["points"][2].contains("perplexity"));
}

TEST_F(ConsoleFrontier, SaysWhatIsMissing) {
  const auto speed = document(R"({"points": [{"tier": "T1", "model_hash": "abc", "decode_ms": 0.5}]})");
  EXPECT_TRUE(speed["measured"].get<bool>());
  EXPECT_FALSE(speed["quality"].get<bool>());
  EXPECT_NE(speed["note"].get<std::string>().find("quality was not measured"), std::string::npos);
  const auto other = document(R"({"points": [{"tier": "T1", "model_hash": "x", "perplexity": 2}]})");
  EXPECT_FALSE(other["measured"].get<bool>());
  EXPECT_NE(other["note"].get<std::string>().find("another model"), std::string::npos);
  for (const auto* text : {"[]", "{}", R"({"points": 3})", "no"}) EXPECT_THROW(document(text), Error) << text;
}

}  // namespace
}  // namespace essh::serve
