#pragma once
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "essh/serve/schema.h"

namespace essh::serve {

// How a conversation becomes one text:
//   ChatML   <|im_start|>ROLE\nCONTENT<|im_end|>\n ... <|im_start|>assistant\n
//   Llama-3  <|begin_of_text|><|start_header_id|>ROLE<|end_header_id|>\n\nCONTENT<|eot_id|> ...
enum class ChatTemplate { ChatMl, Llama3 };

// "chatml", "llama3", or "auto": the template of the folder's tokenizer_config.json where it is one of the two, the one
// whose markers the tokenizer has, or ChatML. A folder with any other template is an error that says so.
ChatTemplate choose_chat_template(const std::string& name, const std::filesystem::path& folder,
                                  const Tokenizer& tokenizer);
std::string_view chat_template_name(ChatTemplate chat);

// Up to where the assistant speaks. Only the markers become special tokens: what a message contains stays text.
std::vector<TokenId> encode_chat(ChatTemplate chat, std::span<const ChatMessage> messages, const Tokenizer& tokenizer);
// Ends the assistant's turn.
std::string_view end_of_turn(ChatTemplate chat);

}  // namespace essh::serve
