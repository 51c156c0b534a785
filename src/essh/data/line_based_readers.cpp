#include "essh/data/line_based_readers.h"

#include <algorithm>
#include <cstring>

namespace essh {
namespace {

std::string_view without_line_end(std::string_view line) {
  if (line.ends_with('\n')) line.remove_suffix(1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

std::unique_ptr<ByteStream> open_at(const std::filesystem::path& path, std::uint64_t offset) {
  auto stream = open_byte_stream(path);
  if (offset > 0) stream->skip(offset);
  return stream;
}

}  // namespace

LineBasedReader::LineBasedReader(const std::filesystem::path& path, SourcePosition start)
    : stream_(open_at(path, start.offset)), lines_(*stream_, start.offset, start.line) {}

bool LineBasedReader::read(Block& block) {
  if (ended_) return false;
  while (block.size() < kBlockBytes) {
    if (!held_) {
      line_start_ = {lines_.offset(), lines_.number()};
      if (!lines_.next(line_)) {
        ended_ = true;
        end(block);
        break;
      }
    }
    held_ = !take(line_, line_start_.line, block);
    if (held_) break;
  }
  block.resumable = ended_ || between_documents();
  block.end = held_ ? line_start_ : SourcePosition{lines_.offset(), lines_.number()};
  block.consumed = stream_->consumed();
  return true;
}

bool TextReader::take(const Line& line, std::uint64_t, Block& block) {
  if (line.first && line.last && without_line_end(line.bytes) == kDocumentSeparator)
    builder_.finish(block);
  else
    builder_.append(line.bytes, block);
  return true;
}

bool FastaReader::take(const Line& line, std::uint64_t number, Block& block) {
  const char mark = line.first && !line.bytes.empty() ? line.bytes.front() : '\0';
  if (mark == '>') {
    builder_.finish(block);
    in_record_ = false;
    if (block.size() >= kBlockBytes) return false;
    in_record_ = true;
    if (!holdout_.empty()) {
      const auto title = without_line_end(line.bytes).substr(1);
      const auto& name = block.records.emplace_back(title.substr(0, title.find_first_of(" \t")));
      builder_.set_held_out(std::ranges::find(holdout_, name) != holdout_.end());
    }
  }
  if (mark == '>' || mark == ';' || passing_) {
    passing_ = !line.last;
    return true;
  }
  const auto sequence = without_line_end(line.bytes);
  if (in_record_) {
    builder_.append(sequence, block);
  } else if (!sequence.empty() && !faulty_) {
    faulty_ = true;
    block.add_fault(number, LineFault::NoRecord);
  }
  return true;
}

bool JsonlReader::take(const Line& line, std::uint64_t number, Block& block) {
  if (line.first && line.last) {
    if (block.undecoded.empty()) block.first_line = number;
    block.undecoded.append(line.bytes);
    return true;
  }
  if (line.first) {
    if (!block.undecoded.empty()) return false;
    in_long_line_ = true;
    scanner_.reset();
  }
  decoded_.clear();
  scanner_.feed(line.bytes, decoded_);
  builder_.append(decoded_, block);
  if (line.last) {
    in_long_line_ = false;
    if (scanner_.finish()) {
      builder_.finish(block);
    } else {
      builder_.abandon(block);
      block.add_fault(number, scanner_.fault());
    }
  }
  return true;
}

void decode_block(Block& block, const std::string& field) {
  if (block.undecoded.empty()) return;
  JsonFieldScanner scanner(field);
  block.text.reserve(block.text.size() + block.undecoded.size());
  std::uint64_t number = block.first_line;
  for (std::string_view rest = block.undecoded; !rest.empty(); ++number) {
    const auto line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const auto begin = block.text.size();
    scanner.reset();
    if (scanner.feed(line, block.text) && scanner.finish()) {
      if (block.text.size() > begin) block.pieces.push_back({begin, block.text.size() - begin, true, true});
    } else {
      block.text.resize(begin);
      block.add_fault(number, scanner.fault());
    }
  }
  block.undecoded.clear();
}

}  // namespace essh
