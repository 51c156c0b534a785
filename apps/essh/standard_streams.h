#pragma once
#include <string>
#include <string_view>

namespace essh::verbs {

// Something other than a person stands behind standard input: a pipe or a file.
bool input_is_piped();
std::string read_standard_input();
// All of it, or an error.
void write_standard_output(std::string_view bytes);

}  // namespace essh::verbs
