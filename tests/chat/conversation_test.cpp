#include "essh/chat/conversation.h"

#include <gtest/gtest.h>

#include "essh/model/initialise.h"

namespace essh::chat {
namespace {

StoredModel make_family() {
  ModelConfig config = preset("tiny");
  config.vocab_size = 300;
  config.hidden_size = 64;
  config.intermediate_size = 192;
  config.sliding_attention.num_attention_heads = 1;
  config.sliding_window = 100;
  config.elastic.ffn.full = 192;
  LoadedModel model{config, Parameters<float>(config)};
  initialise(model.parameters, config, 3);
  return StoredModel(std::move(model), "a");
}

struct ConversationTest : ::testing::Test {
  Stream stream = cpu_stream(2);
  Engine engine{make_family(), stream};
  std::unique_ptr<Tokenizer> tokenizer = make_byte_tokenizer();
  std::string shown;

  Conversation start(std::optional<serve::ChatTemplate> chat, std::int64_t most = 8, const std::string& tier = "T4") {
    return {engine,
            *tokenizer,
            chat,
            find_tier(engine.config(), tier),
            {.sampling = {.temperature = 1, .seed = 5}, .max_tokens = most}};
  }
  Turn say(
      Conversation& conversation, const std::string& text, const std::function<bool()>& stop = [] { return false; }) {
    shown.clear();
    return conversation.say(
        text, [&](const std::string& piece) { shown += piece; }, stop);
  }
};

TEST_F(ConversationTest, ReadsOnlyWhatIsNew) {
  auto talk = start(std::nullopt);
  const auto first = say(talk, "Hello");
  EXPECT_EQ(first.read, 5);
  EXPECT_EQ(first.text, shown);
  ASSERT_EQ(first.ending, Ending::Length);
  for (int i = 0; i < 20; ++i) {
    const auto turn = say(talk, "more");
    // The last drawn token, the line break, the message.
    EXPECT_LE(turn.read, 1 + 1 + 4);
    EXPECT_GE(turn.read, 1 + 4);
  }
  EXPECT_EQ(talk.messages().size(), 42u);
}

TEST_F(ConversationTest, ATemplateStandsAroundNewMessagesOnly) {
  auto talk = start(serve::ChatTemplate::ChatMl);
  talk.set_system("S");
  const std::string opening =
      "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(say(talk, "Hi").read, static_cast<std::int64_t>(opening.size()));
  const std::string next = "<|im_end|>\n<|im_start|>user\nYo<|im_end|>\n<|im_start|>assistant\n";
  const auto turn = say(talk, "Yo");
  EXPECT_LE(turn.read, static_cast<std::int64_t>(next.size()) + 1);
  EXPECT_GE(turn.read, static_cast<std::int64_t>(next.size()));
  EXPECT_EQ(talk.messages().front().role, "system");
}

TEST_F(ConversationTest, AnotherTierReadsEverythingOnceMore) {
  auto talk = start(std::nullopt);
  const auto first = say(talk, "Hello");
  talk.set_tier(find_tier(engine.config(), "T1"));
  EXPECT_EQ(talk.tier().name, "T1");
  EXPECT_EQ(say(talk, "more").read, first.read + first.drawn + 5);
  // The same capacity under another name keeps the state.
  talk.set_tier(find_tier(engine.config(), sizes_of(engine.config(), talk.tier().capacity)));
  EXPECT_LE(say(talk, "more").read, 6);
}

TEST_F(ConversationTest, TheStateIsThatOfTheWholeText) {
  // A change of the tier and back makes the next turn process everything again; the result is the same.
  const auto tier = find_tier(engine.config(), "T4");
  Conversation kept(engine, *tokenizer, std::nullopt, tier, {.max_tokens = 12});
  Conversation again(engine, *tokenizer, std::nullopt, tier, {.max_tokens = 12});
  ASSERT_EQ(say(kept, "Hello").text, say(again, "Hello").text);
  again.set_tier(find_tier(engine.config(), "T1"));
  again.set_tier(tier);
  const auto a = say(kept, "more"), b = say(again, "more");
  EXPECT_EQ(a.text, b.text);
  EXPECT_LT(a.read, b.read);
}

TEST_F(ConversationTest, ADraftChangesNoGreedyAnswer) {
  for (const char* draft : {"T1", "T4", "T9"}) {
    const auto tier = find_tier(engine.config(), "T4");
    const auto drafts = find_tier(engine.config(), draft);
    Conversation plain(engine, *tokenizer, std::nullopt, tier, {.max_tokens = 14});
    Conversation drafted(engine, *tokenizer, std::nullopt, tier,
                         {.max_tokens = 14, .draft = drafts, .draft_tokens = 3});
    for (const char* message : {"Hello", "more", "and on"}) {
      const auto expected = say(plain, message), found = say(drafted, message);
      EXPECT_EQ(found.text, expected.text) << draft;
      EXPECT_EQ(found.drawn, expected.drawn) << draft;
      EXPECT_LE(found.read, expected.read) << draft;
    }
    // The larger draft comes into use with a larger tier.
    for (auto* talk : {&plain, &drafted}) talk->set_tier(find_tier(engine.config(), "T9"));
    EXPECT_EQ(say(drafted, "on").text, say(plain, "on").text) << draft;
  }
}

TEST_F(ConversationTest, StopsBetweenTokensAndGoesOn) {
  auto talk = start(std::nullopt, 1000000);
  int asked = 0;
  const auto turn = say(talk, "Hello", [&] { return ++asked > 10; });
  EXPECT_EQ(turn.ending, Ending::Stopped);
  EXPECT_GT(turn.drawn, 0);
  EXPECT_LE(turn.drawn, 10);
  // While reading the prompt: nothing is drawn, and the rest is read later.
  const auto halted = say(talk, std::string(5000, 'x'), [] { return true; });
  EXPECT_EQ(halted.ending, Ending::Stopped);
  EXPECT_EQ(halted.drawn, 0);
  EXPECT_EQ(halted.read, 0);
  asked = 0;
  EXPECT_GT(say(talk, "y", [&] { return ++asked > 20; }).read, 5000);
}

TEST_F(ConversationTest, StartsOver) {
  auto talk = start(std::nullopt);
  say(talk, "Hello");
  talk.reset();
  EXPECT_TRUE(talk.messages().empty());
  EXPECT_EQ(say(talk, "Hello").read, 5);
  talk.set_system("ab");
  EXPECT_EQ(say(talk, "Hello").read, 8);
}

TEST_F(ConversationTest, ATokenizerWithoutMarkersHasNoTemplate) {
  EXPECT_FALSE(find_template("auto", "/nonexistent", *tokenizer));
  EXPECT_FALSE(find_template("none", "/nonexistent", *tokenizer));
  EXPECT_EQ(find_template("chatml", "/nonexistent", *tokenizer), serve::ChatTemplate::ChatMl);
}

}  // namespace
}  // namespace essh::chat
