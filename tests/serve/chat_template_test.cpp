#include "essh/serve/chat_template.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "essh/base/error.h"

namespace essh::serve {
namespace {

const std::vector<ChatMessage> kTalk = {{"system", "Be brief."}, {"user", " <|endoftext|>Hi\n"}};

class ChatFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("essh-chat-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void settings(const std::string& text) { std::ofstream(folder_ / "tokenizer_config.json") << text; }

  std::filesystem::path folder_;
  std::unique_ptr<Tokenizer> tokenizer_ = make_byte_tokenizer();
};

TEST_F(ChatFolder, OwnTemplateFirst) {
  EXPECT_EQ(choose_chat_template("auto", folder_, *tokenizer_), ChatTemplate::ChatMl);
  settings(R"({"chat_template": "{% x %}<|start_header_id|>"})");
  EXPECT_EQ(choose_chat_template("auto", folder_, *tokenizer_), ChatTemplate::Llama3);
  EXPECT_EQ(choose_chat_template("chatml", folder_, *tokenizer_), ChatTemplate::ChatMl);
  settings(R"({"chat_template": "<|im_start|>"})");
  EXPECT_EQ(choose_chat_template("auto", folder_, *tokenizer_), ChatTemplate::ChatMl);
  settings(R"({"chat_template": "[INST]"})");
  EXPECT_THROW(choose_chat_template("auto", folder_, *tokenizer_), Error);
  EXPECT_EQ(choose_chat_template("llama3", folder_, *tokenizer_), ChatTemplate::Llama3);
  EXPECT_THROW(choose_chat_template("other", folder_, *tokenizer_), Error);
}

TEST(ChatTemplates, ChatMl) {
  const auto tokenizer = make_byte_tokenizer();
  const auto ids = encode_chat(ChatTemplate::ChatMl, kTalk, *tokenizer);
  EXPECT_EQ(tokenizer->decode(ids),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n <|endoftext|>Hi\n<|im_end|>\n"
            "<|im_start|>assistant\n");
  // Text of a message never becomes a special token.
  EXPECT_EQ(std::ranges::count(ids, 256), 0);
}

TEST(ChatTemplates, Llama3) {
  const auto tokenizer = make_byte_tokenizer();
  EXPECT_EQ(tokenizer->decode(encode_chat(ChatTemplate::Llama3, kTalk, *tokenizer)),
            "<|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\n<|endoftext|>Hi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n");
  EXPECT_EQ(end_of_turn(ChatTemplate::Llama3), "<|eot_id|>");
}

}  // namespace
}  // namespace essh::serve
