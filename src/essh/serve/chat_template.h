#pragma once
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "essh/serve/schema.h"

namespace essh::serve {

// The text of a conversation:
//   ChatML   <|im_start|>ROLE\nCONTENT<|im_end|>\n ... <|im_start|>assistant\n
//   Llama-3  <|begin_of_text|><|start_header_id|>ROLE<|end_header_id|>\n\nCONTENT<|eot_id|> ...
enum class ChatTemplate { ChatMl, Llama3 };

// "chatml", "llama3" or "auto". Auto takes the template of tokenizer_config.json if it is one of the two, else the
// template whose markers the tokenizer has, else ChatML. Any other template in the folder is an error.
ChatTemplate choose_chat_template(const std::string& name, const std::filesystem::path& folder,
                                  const Tokenizer& tokenizer);
std::string_view chat_template_name(ChatTemplate chat);

// Ends where the assistant's reply begins. Only the markers become special tokens; the content of messages stays text.
std::vector<TokenId> encode_chat(ChatTemplate chat, std::span<const ChatMessage> messages, const Tokenizer& tokenizer);
// The marker that ends the assistant's turn.
std::string_view end_of_turn(ChatTemplate chat);

}  // namespace essh::serve
