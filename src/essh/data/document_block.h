#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace essh {

// Documents are tokenised in pieces of at most this many bytes: nearly always the whole document. See cut_document().
inline constexpr std::size_t kPieceBytes = 1u << 20;
// A block is handed on once it holds this much.
inline constexpr std::size_t kBlockBytes = 1u << 20;

// Why a line or row gives no document.
enum class LineFault { None, NotJson, NotObject, TooDeep, FieldMissing, FieldNotString, FieldTwice, NullRow, NoRecord };
std::string describe(LineFault fault, std::string_view field);

struct BadLine {
  std::uint64_t number;  // of the line or row in its source, from 1
  LineFault fault;
};

// A run of bytes of one document.
struct Piece {
  std::size_t begin;  // in Block::text
  std::size_t size;
  bool first;             // the document begins here
  bool last;              // the document ends here
  bool held_out = false;  // of a record that is held out of training
};

// Where reading a source can go on: between two documents.
struct SourcePosition {
  std::uint64_t offset = 0;  // bytes of the decompressed stream, or rows
  std::uint64_t line = 1;    // the line that begins there
};

// A stretch of a source: what one worker tokenises at a time.
struct Block {
  static constexpr std::size_t kListedFaults = 16;

  std::string text;
  std::vector<Piece> pieces;
  // Lines that a worker still has to decode into text and pieces, the first of them being line `first_line`.
  std::string undecoded;
  std::uint64_t first_line = 0;

  std::vector<std::string> records;  // names of the records that begin here, where a reader was asked to hold some out
  std::vector<BadLine> bad_lines;    // the first kListedFaults
  std::uint64_t bad_count = 0;
  bool resumable = false;  // the block ends between two documents, at `end`
  SourcePosition end;
  std::uint64_t consumed = 0;  // bytes of the source file used up to here

  void clear();
  void add_fault(std::uint64_t line, LineFault fault);
  std::size_t size() const { return text.size() + undecoded.size(); }
};

// Where to end a piece of a document that has more than kPieceBytes left, a position in (kPieceBytes / 2, kPieceBytes]:
// after the last line break that a visible character follows, where the GPT-2 and Llama-3 patterns always cut; else
// before the last space; else between two characters. A function of the bytes alone.
std::size_t cut_document(std::string_view text);

// Where the validation share of a piece of a long document begins: near the end, leaving `fraction` of the bytes or up
// to twice as many, at a place that cut_document would choose. The size of the text where the share would be nothing.
std::size_t cut_for_validation(std::string_view text, double fraction);

// A document of one piece is split between training and validation when its share has at least this many bytes.
inline constexpr std::size_t kLeastShareBytes = 1024;

// Collects the bytes of one document after another into the pieces of blocks.
class DocumentBuilder {
 public:
  // At most kPieceBytes at a time.
  void append(std::string_view bytes, Block& block);
  // Ends the document; an empty one leaves no trace.
  void finish(Block& block);
  // Forgets the document unless a piece of it was handed on, which then ends the document. True when forgotten.
  bool abandon(Block& block);
  // Marks the pieces of the documents that begin from here on.
  void set_held_out(bool held_out) { held_out_ = held_out; }
  // Whether bytes of an unfinished document are held.
  bool inside() const { return started_ || !pending_.empty(); }

 private:
  void emit(std::size_t size, bool last, Block& block);

  std::string pending_;
  bool started_ = false;
  bool held_out_ = false;
};

}  // namespace essh
