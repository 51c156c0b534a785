#include "essh/data/document_block.h"

#include <fmt/core.h>

#include <algorithm>

#include "essh/base/error.h"

namespace essh {
namespace {

// Without the lead bytes C2, E1, E2 and E3, which also begin Unicode white space.
bool visible_start(unsigned char byte) {
  if (byte < 0x80) return byte > 0x20 && byte < 0x7f;
  return byte >= 0xC3 && byte <= 0xF4 && !(byte >= 0xE1 && byte <= 0xE3);
}

bool continues_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

// The best place in (least, most] to cut a text of more than `most` bytes.
std::size_t cut_within(std::string_view text, std::size_t least, std::size_t most) {
  for (std::size_t cut = most; cut > least; --cut) {
    if (text[cut - 1] == '\n' && visible_start(static_cast<unsigned char>(text[cut]))) return cut;
  }
  for (std::size_t cut = most; cut > least; --cut) {
    if (text[cut] == ' ' && text[cut - 1] != ' ') return cut;
  }
  for (std::size_t cut = most; cut > least && cut + 4 > most; --cut) {
    if (!continues_character(text[cut])) return cut;
  }
  return most;
}

}  // namespace

std::string describe(LineFault fault, std::string_view field) {
  switch (fault) {
    case LineFault::None:
      break;
    case LineFault::NotJson:
      return "not valid JSON";
    case LineFault::NotObject:
      return "not a JSON object";
    case LineFault::TooDeep:
      return "JSON nested too deeply";
    case LineFault::FieldMissing:
      return fmt::format("no field \"{}\" (name the one with the text)", field);
    case LineFault::FieldNotString:
      return fmt::format("the field \"{}\" is not a string", field);
    case LineFault::FieldTwice:
      return fmt::format("the field \"{}\" occurs twice", field);
    case LineFault::NullRow:
      return fmt::format("the column \"{}\" is null", field);
    case LineFault::NoRecord:
      return "sequence before the first \">\" line";
  }
  return "no fault";
}

void Block::clear() {
  text.clear();
  pieces.clear();
  undecoded.clear();
  records.clear();
  bad_lines.clear();
  first_line = bad_count = consumed = 0;
  resumable = false;
  end = {};
}

void Block::add_fault(std::uint64_t line, LineFault fault) {
  if (bad_lines.size() < kListedFaults) bad_lines.push_back({line, fault});
  ++bad_count;
}

std::size_t cut_document(std::string_view text) {
  ESSH_ASSERT(text.size() > kPieceBytes);
  return cut_within(text, kPieceBytes / 2, kPieceBytes);
}

std::size_t cut_for_validation(std::string_view text, double fraction) {
  const auto share = static_cast<std::size_t>(fraction * static_cast<double>(text.size()));
  if (share == 0) return text.size();
  const auto most = text.size() - share;
  return cut_within(text, most - std::min(share, most), most);
}

void DocumentBuilder::append(std::string_view bytes, Block& block) {
  ESSH_ASSERT(bytes.size() <= kPieceBytes);
  pending_.append(bytes);
  while (pending_.size() > kPieceBytes) emit(cut_document(pending_), false, block);
}

void DocumentBuilder::finish(Block& block) {
  if (!pending_.empty()) emit(pending_.size(), true, block);
  started_ = false;
}

bool DocumentBuilder::abandon(Block& block) {
  if (started_) {
    finish(block);
    return false;
  }
  pending_.clear();
  return true;
}

void DocumentBuilder::emit(std::size_t size, bool last, Block& block) {
  block.pieces.push_back({block.text.size(), size, !started_, last, held_out_});
  block.text.append(pending_, 0, size);
  pending_.erase(0, size);
  started_ = true;
}

}  // namespace essh
