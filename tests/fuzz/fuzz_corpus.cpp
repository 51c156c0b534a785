#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>

#include "essh/data/document_reader.h"
#include "essh/data/json_field_scanner.h"
#include "tests/fuzz/driver.h"
#include "tests/fuzz/mutate.h"
#include "tests/fuzz/scratch_folder.h"

namespace essh {
namespace {

std::string gzip(std::string_view text) {
  z_stream stream{};
  std::string out(text.size() + 1024, '\0');
  if (::deflateInit2(&stream, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK) throw std::bad_alloc();
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  ::deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  ::deflateEnd(&stream);
  return out;
}

// Damaged sources of every format read without Arrow: well-formed documents, or an Error.
class CorpusFuzzer {
 public:
  explicit CorpusFuzzer(std::uint64_t seed)
      : path_(fuzz::scratch_folder() / fmt::format("essh-fuzz-corpus-{}-{}", ::getpid(), seed)),
        mutator_(seed, {"{",
                        "}",
                        "[",
                        "]",
                        ",",
                        ":",
                        "\"",
                        "\\u",
                        "\\ud800",
                        "\\udc00",
                        "\n",
                        "\r\n",
                        "{\"text\":\"",
                        "\"text\":",
                        "<|endoftext|>\n",
                        "\n>",
                        ";",
                        "\xff",
                        std::string(1, '\0'),
                        std::string(80, '['),
                        "\xEF\xBB\xBF",
                        "1e5",
                        "null",
                        "-"}) {
    const std::string lines = R"({"id":1,"text":"one \u00e9 \ud83d\ude00","meta":{"a":[1,-2.5e3,true,null]}})"
                              "\n{\"text\":\"\"}\n\n"
                              R"({"text":"a longer text with \"quotes\" and \\ and more","n":0})";
    const std::string text = "first document\n<|endoftext|>\nsecond\r\nline\n<|endoftext|>\r\nlast";
    const std::string fasta = ">one title\nACGT\nNNNN\n;note\n>two\nGG\n";
    // One skippable frame, then one of "hello zstd\n" three times.
    const std::string zstd(
        "\x50\x2a\x4d\x18\x02\x00\x00\x00hi\x28\xb5\x2f\xfd\x20\x21\x8d\x00\x00\x58\x68\x65\x6c\x6c\x6f\x20\x7a\x73\x74"
        "\x64\x0a\x01\x00\x56\x8a\x17",
        36);
    seeds_ = {{CorpusFormat::Jsonl, lines},       {CorpusFormat::Text, text},       {CorpusFormat::Fasta, fasta},
              {CorpusFormat::Jsonl, gzip(lines)}, {CorpusFormat::Text, gzip(text)}, {CorpusFormat::Text, zstd}};
  }
  CorpusFuzzer(CorpusFuzzer&&) = default;
  ~CorpusFuzzer() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove(path_, ignored);
  }

  void operator()() {
    const auto& [format, seed] = mutator_.pick(seeds_);
    std::string image = seed;
    mutator_.mutate(image, mutator_.pick(seeds_).second);
    if (format == CorpusFormat::Jsonl) check_cuts(image);
    std::ofstream(path_, std::ios::binary).write(image.data(), static_cast<std::streamsize>(image.size()));
    const auto reader = open_document_reader(path_, format, "text");
    Block block;
    bool inside = false;
    while (reader->read(block)) {
      decode_block(block, "text");
      std::size_t end = 0;
      for (const auto& piece : block.pieces) {
        require(piece.begin == end && piece.size > 0 && piece.size <= kPieceBytes && piece.first == !inside);
        end += piece.size;
        inside = !piece.last;
      }
      require(end == block.text.size() && block.bad_lines.size() <= block.bad_count);
      block.clear();
    }
    require(!inside);
  }

 private:
  static void require(bool good) {
    if (!good) throw std::logic_error("documents are not well formed");
  }

  // The scanner's result does not depend on how a line is cut.
  void check_cuts(std::string_view line) {
    const auto scan = [&](std::size_t step) {
      JsonFieldScanner scanner("text");
      std::string text;
      scanner.reset();
      for (std::size_t at = 0; at < line.size() && scanner.feed(line.substr(at, step), text); at += step) {
      }
      return scanner.finish() ? text : fmt::format("fault {}", static_cast<int>(scanner.fault()));
    };
    if (scan(line.size() + 1) != scan(1 + mutator_.rng().below(5))) throw std::logic_error("the cut changed the text");
  }

  std::filesystem::path path_;
  std::vector<std::pair<CorpusFormat, std::string>> seeds_;
  fuzz::Mutator mutator_;
};

const fuzz::Registered<CorpusFuzzer> kCorpusFuzzer("corpus");

}  // namespace
}  // namespace essh
