#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "essh/base/json_fwd.h"
#include "essh/model/config.h"
#include "essh/serve/http.h"

// The web console: three files inside the program, and what its plot shows.
namespace essh::serve {

// "/", "/console.css", "/console.js", "/console.svg": public, as they hold nothing of the model.
bool is_console(std::string_view path);
// A file of the console, 304 if the browser has it. `path` is one of the above.
HttpReply console_reply(const HttpRequest& request);

// What a capacity costs, from shapes alone: parameters, parameter_fraction, state_bytes, kv_bytes, flops_per_token.
Json describe_cost(const ModelConfig& config, const Capacity& capacity);

// The tiers as points of a plot. `path` is a file of `essh frontier --json`, empty for none: points of this model (by
// its hash) bring measured quality and decoding time along. {"measured", "quality", "note", "points": [...], ...}
Json frontier_document(const ModelConfig& config, const std::string& hash, const std::filesystem::path& path);

}  // namespace essh::serve
