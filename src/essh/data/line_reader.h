#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "essh/data/byte_stream.h"

namespace essh {

// A line, or a part of one that is longer than LineReader::kWholeLine. `bytes` ends with '\n' where the line does.
struct Line {
  std::string_view bytes;  // valid until the next call of next()
  bool first = true;       // the line begins here
  bool last = true;        // the line ends here
};

// Lines of a stream in bounded memory. A byte-order mark at the start of the stream is skipped.
class LineReader {
 public:
  // Lines of at most this many bytes, '\n' included, are returned whole; longer lines in parts.
  static constexpr std::size_t kWholeLine = 1u << 20;

  // `stream` is at byte `offset`, where line `number` (counted from 1) begins.
  LineReader(ByteStream& stream, std::uint64_t offset, std::uint64_t number);

  bool next(Line& line);
  // Offset after the last result of next(), and the number of the line that begins or continues there.
  std::uint64_t offset() const { return offset_; }
  std::uint64_t number() const { return number_; }

 private:
  void fill();
  Line take(std::size_t size, bool last);

  ByteStream& stream_;
  std::size_t size_;  // of the buffer: grows up to two lines of maximal length
  std::unique_ptr<char[]> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  bool ended_ = false;
  bool inside_line_ = false;
  std::uint64_t offset_;
  std::uint64_t number_;
};

}  // namespace essh
