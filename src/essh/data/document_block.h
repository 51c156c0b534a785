#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace essh {

// Most bytes of a piece, the unit of tokenisation. Most documents are one piece; see cut_document().
inline constexpr std::size_t kPieceBytes = 1u << 20;
// A block is passed on once it holds this many bytes.
inline constexpr std::size_t kBlockBytes = 1u << 20;

// Why a line or row gives no document.
enum class LineFault { None, NotJson, NotObject, TooDeep, FieldMissing, FieldNotString, FieldTwice, NullRow, NoRecord };
std::string describe(LineFault fault, std::string_view field);

struct BadLine {
  std::uint64_t number;  // of the line or row in its source, from 1
  LineFault fault;
};

// Contiguous bytes of one document.
struct Piece {
  std::size_t begin;  // in Block::text
  std::size_t size;
  bool first;             // the document begins here
  bool last;              // the document ends here
  bool held_out = false;  // of a record that is held out of training
};

// A position between two documents, from which reading can resume.
struct SourcePosition {
  std::uint64_t offset = 0;  // bytes of the decompressed stream, or rows
  std::uint64_t line = 1;    // the line that begins there
};

// A section of a source, the unit of work of one worker.
struct Block {
  static constexpr std::size_t kListedFaults = 16;

  std::string text;
  std::vector<Piece> pieces;
  // Undecoded lines, starting with line `first_line`; a worker decodes them into text and pieces.
  std::string undecoded;
  std::uint64_t first_line = 0;

  std::vector<std::string> records;  // names of the records that begin here, if some records are held out
  std::vector<BadLine> bad_lines;    // the first kListedFaults
  std::uint64_t bad_count = 0;
  bool resumable = false;  // the block ends between two documents, at `end`
  SourcePosition end;
  std::uint64_t consumed = 0;  // bytes of the source file used up to here

  void clear();
  void add_fault(std::uint64_t line, LineFault fault);
  std::size_t size() const { return text.size() + undecoded.size(); }
};

// The end of a piece of a document that has more than kPieceBytes left, in (kPieceBytes / 2, kPieceBytes]: after the
// last line break that a visible character follows, where the GPT-2 and Llama-3 patterns always cut; else before the
// last space; else between two characters. Depends only on the bytes.
std::size_t cut_document(std::string_view text);

// Start of the validation share of a piece of a long document: leaves one to two times `fraction` of the bytes and is a
// cut as in cut_document. Returns the size of the text if the share is empty.
std::size_t cut_for_validation(std::string_view text, double fraction);

// A document of one piece is split between training and validation when its share has at least this many bytes.
inline constexpr std::size_t kLeastShareBytes = 1024;

// Collects the bytes of documents into the pieces of blocks.
class DocumentBuilder {
 public:
  // At most kPieceBytes at a time.
  void append(std::string_view bytes, Block& block);
  // Ends the document; an empty document is dropped.
  void finish(Block& block);
  // Drops the document and returns true, unless a piece of it was already passed on; the document then ends there.
  bool abandon(Block& block);
  // Marks the pieces of all documents that begin later.
  void set_held_out(bool held_out) { held_out_ = held_out; }
  // Whether an unfinished document has bytes.
  bool inside() const { return started_ || !pending_.empty(); }

 private:
  void emit(std::size_t size, bool last, Block& block);

  std::string pending_;
  bool started_ = false;
  bool held_out_ = false;
};

}  // namespace essh
