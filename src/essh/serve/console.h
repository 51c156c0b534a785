#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "essh/base/json_fwd.h"
#include "essh/model/config.h"
#include "essh/serve/http.h"

// The web console: files compiled into the program, and the data of its plot.
namespace essh::serve {

// "/", "/console.css", "/console.js" and "/console.svg" need no key: they contain nothing of the model.
bool is_console(std::string_view path);
// A file of the console, or 304 if the browser has it. Requires is_console(path).
HttpReply console_reply(const HttpRequest& request);

// Costs derived from shapes: parameters, parameter_fraction, state_bytes, kv_bytes, flops_per_token.
Json describe_cost(const ModelConfig& config, const Capacity& capacity);

// The tiers as points of a plot. `path` is the output of `essh frontier --json`, empty for none; its points with this
// model's hash add measured quality and decoding time. {"measured", "quality", "note", "points": [...], ...}
Json frontier_document(const ModelConfig& config, const std::string& hash, const std::filesystem::path& path);

}  // namespace essh::serve
