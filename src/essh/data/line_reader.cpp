#include "essh/data/line_reader.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

namespace essh {

LineReader::LineReader(ByteStream& stream, std::uint64_t offset, std::uint64_t number)
    : stream_(stream),
      size_(1u << 16),
      buffer_(std::make_unique_for_overwrite<char[]>(size_)),
      offset_(offset),
      number_(number) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  if (offset != 0) return;
  while (end_ < kMark.size() && !ended_) fill();
  if (std::string_view(buffer_.get(), end_).starts_with(kMark)) begin_ = offset_ = kMark.size();
}

void LineReader::fill() {
  if (begin_ > 0) {
    std::memmove(buffer_.get(), buffer_.get() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (end_ == size_ && size_ < 2 * kWholeLine) {
    size_ *= 2;
    auto larger = std::make_unique_for_overwrite<char[]>(size_);
    std::memcpy(larger.get(), buffer_.get(), end_);
    buffer_ = std::move(larger);
  }
  const auto got = stream_.read(std::span(buffer_.get(), size_).subspan(end_));
  ended_ = got == 0;
  end_ += got;
}

Line LineReader::take(std::size_t size, bool last) {
  const Line line{{buffer_.get() + begin_, size}, !inside_line_, last};
  begin_ += size;
  offset_ += size;
  inside_line_ = !last;
  if (last) ++number_;
  return line;
}

bool LineReader::next(Line& line) {
  std::size_t searched = 0;
  while (true) {
    const char* from = buffer_.get() + begin_;
    const auto available = end_ - begin_;
    const auto limit = std::min(available, kWholeLine);
    if (const void* found = std::memchr(from + searched, '\n', limit - searched); found != nullptr) {
      line = take(static_cast<std::size_t>(static_cast<const char*>(found) - from) + 1, true);
      return true;
    }
    if (available > kWholeLine || ended_) {
      if (available == 0 && !inside_line_) return false;
      line = take(limit, available <= kWholeLine);
      return true;
    }
    searched = limit;
    fill();
  }
}

}  // namespace essh
