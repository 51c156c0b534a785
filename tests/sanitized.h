#pragma once

namespace essh {

// Tests that only repeat the same code more often may do so less with a sanitizer: release runs the whole of them.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace essh
