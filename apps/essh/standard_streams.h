#pragma once
#include <string>
#include <string_view>

namespace essh::verbs {

// Whether standard input is a pipe or a file.
bool input_is_piped();
std::string read_standard_input();
bool output_is_terminal();
// Model text made safe for a terminal: U+FFFD for control characters except line break and tab, and for invalid bytes.
std::string harmless(std::string_view text);
// Writes all bytes or throws.
void write_standard_output(std::string_view bytes);

}  // namespace essh::verbs
