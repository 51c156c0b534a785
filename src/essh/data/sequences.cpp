#include "essh/data/sequences.h"

#include <algorithm>
#include <vector>

#include "essh/base/error.h"

namespace essh {
namespace {

std::int64_t checked_windows(const TokenStream& stream, std::int64_t context) {
  const auto windows = stream.windows(context);
  if (windows == 0) {
    fail(ErrorKind::Usage, "the split has {} tokens, too few for one sequence of {} + 1; prepare more text",
         stream.tokens(), context);
  }
  return windows;
}

}  // namespace

TextSequences::TextSequences(const TokenStream& stream, std::int64_t context, std::optional<std::uint64_t> seed)
    : stream_(stream), context_(context), windows_(checked_windows(stream, context)) {
  if (seed) order_.emplace(*seed, windows_);
}

void TextSequences::read(std::int64_t index, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const {
  std::vector<std::int32_t> window(static_cast<std::size_t>(context_ + 1));
  stream_.read_window(order_ ? (*order_)(index) : index % windows_, window);
  std::copy(window.begin(), window.end() - 1, inputs.begin());
  std::copy(window.begin() + 1, window.end(), targets.begin());
}

}  // namespace essh
