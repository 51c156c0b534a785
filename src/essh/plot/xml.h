#pragma once
#include <string>
#include <string_view>

namespace essh::plot {

// Escapes `text` for an element or a quoted attribute of XML or HTML. Bytes that are not UTF-8 and characters that XML
// forbids become U+FFFD.
std::string escape_xml(std::string_view text);

}  // namespace essh::plot
