#pragma once

namespace essh {

// Names the calling thread, in at most 15 characters, for debuggers, profilers and `top -H`.
void name_thread(const char* name);

}  // namespace essh
