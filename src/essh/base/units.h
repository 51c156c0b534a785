#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace essh {

// "1.53 GB", "272 kB": decimal units, three digits.
std::string format_bytes(double bytes);
// "1.53 B", "92.1 M": counts.
std::string format_count(double count);
// "2m 05s", "1h 12m".
std::string format_duration(double seconds);
// "20ms", "0.5s", "800us" as milliseconds; a number alone is milliseconds. `place` starts the message of a failure.
double parse_milliseconds(std::string_view text, std::string_view place);
// "300MB", "1.5GiB", "4096". `place` starts the message of a failure.
std::uint64_t parse_bytes(std::string_view text, std::string_view place);

}  // namespace essh
