#include "essh/serve/chat_template.h"

#include "essh/base/error.h"
#include "essh/base/file.h"
#include "essh/base/json.h"

namespace essh::serve {
namespace {

constexpr const char* kSettings = "tokenizer_config.json";

// The folder's template; empty if it has none.
std::string stored_template(const std::filesystem::path& folder) {
  const auto path = folder / kSettings;
  if (!std::filesystem::exists(path)) return {};
  const auto settings = read_json(path);
  if (!settings.is_object() || !settings.contains("chat_template")) return {};
  const auto& chat = settings["chat_template"];
  return chat.is_string() ? chat.get<std::string>() : to_text(chat);
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\r\f\v";
  const auto first = text.find_first_not_of(kSpace);
  return first == std::string_view::npos ? "" : text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

class Encoder {
 public:
  explicit Encoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void marker(std::string_view text) { tokenizer_.encode(text, ids_, {.parse_special_tokens = true}); }
  void text(std::string_view text) { tokenizer_.encode(text, ids_, {.parse_special_tokens = false}); }
  std::vector<TokenId> take() { return std::move(ids_); }

 private:
  const Tokenizer& tokenizer_;
  std::vector<TokenId> ids_;
};

}  // namespace

ChatTemplate choose_chat_template(const std::string& name, const std::filesystem::path& folder,
                                  const Tokenizer& tokenizer) {
  if (name == "chatml") return ChatTemplate::ChatMl;
  if (name == "llama3") return ChatTemplate::Llama3;
  if (name != "auto") fail(ErrorKind::Usage, "the chat template must be auto, chatml or llama3, not \"{}\"", name);
  if (const auto stored = stored_template(folder); !stored.empty()) {
    if (stored.find("<|im_start|>") != std::string::npos) return ChatTemplate::ChatMl;
    if (stored.find("<|start_header_id|>") != std::string::npos) return ChatTemplate::Llama3;
    fail(ErrorKind::Unsupported,
         "{}: its chat_template is neither ChatML nor Llama-3's; give --chat-template chatml or llama3",
         (folder / kSettings).string());
  }
  return tokenizer.token_id("<|start_header_id|>") ? ChatTemplate::Llama3 : ChatTemplate::ChatMl;
}

std::string_view chat_template_name(ChatTemplate chat) {
  return chat == ChatTemplate::ChatMl ? "chatml" : "llama3";
}

std::string_view end_of_turn(ChatTemplate chat) {
  return chat == ChatTemplate::ChatMl ? "<|im_end|>" : "<|eot_id|>";
}

std::vector<TokenId> encode_chat(ChatTemplate chat, std::span<const ChatMessage> messages, const Tokenizer& tokenizer) {
  Encoder encoder(tokenizer);
  // Text between two markers is encoded as one piece, as in Hugging Face, so that merges are the same.
  if (chat == ChatTemplate::ChatMl) {
    for (const auto& message : messages) {
      encoder.marker("<|im_start|>");
      encoder.text(message.role + "\n" + message.content);
      encoder.marker("<|im_end|>");
      encoder.text("\n");
    }
    encoder.marker("<|im_start|>");
    encoder.text("assistant\n");
    return encoder.take();
  }
  const auto header = [&](std::string_view role) {
    encoder.marker("<|start_header_id|>");
    encoder.text(role);
    encoder.marker("<|end_header_id|>");
  };
  if (tokenizer.token_id("<|begin_of_text|>")) encoder.marker("<|begin_of_text|>");
  for (const auto& message : messages) {
    header(message.role);
    encoder.text("\n\n" + std::string(trimmed(message.content)));
    encoder.marker("<|eot_id|>");
  }
  header("assistant");
  encoder.text("\n\n");
  return encoder.take();
}

}  // namespace essh::serve
