#include "essh/data/byte_stream.h"

#include <zlib.h>

#include "tests/data/corpus_fixture.h"

namespace essh {
namespace {

std::string gzip(std::string_view text) {
  z_stream stream{};
  EXPECT_EQ(::deflateInit2(&stream, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(::deflateBound(&stream, static_cast<uLong>(text.size())) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(::deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  ::deflateEnd(&stream);
  return out;
}

std::string read_all(const std::string& path, std::uint64_t skip = 0) {
  const auto stream = open_byte_stream(path);
  if (skip > 0) stream->skip(skip);
  std::string text;
  char piece[1000];
  while (const auto got = stream->read(piece)) text.append(piece, got);
  return text;
}

constexpr std::string_view kZstd(
    "\x28\xb5\x2f\xfd\x20\x21\x8d\x00\x00\x58\x68\x65\x6c\x6c\x6f\x20\x7a\x73\x74\x64\x0a\x01\x00\x56\x8a\x17", 26);

struct ByteStreamTest : CorpusTest {};

TEST_F(ByteStreamTest, PlainAndSkip) {
  const std::string text(700000, 'x');
  const auto path = write("a", text + "end");
  EXPECT_EQ(read_all(path), text + "end");
  EXPECT_EQ(read_all(path, text.size()), "end");
  EXPECT_NE(message_of([&] { read_all(path, text.size() + 4); }).find(path), std::string::npos);
  EXPECT_EQ(read_all(write("empty", "")), "");
}

TEST_F(ByteStreamTest, GzipOfSeveralMembers) {
  const auto one = random_documents(1, 300000, 300000)[0];
  const auto path = write("a.gz", gzip(one) + gzip("") + gzip("second"));
  EXPECT_EQ(read_all(path), one + "second");
  EXPECT_EQ(read_all(path, one.size() + 3), "ond");
}

TEST_F(ByteStreamTest, DamagedGzipNamesTheFile) {
  const auto whole = gzip(random_documents(1, 300000, 300000)[0]);
  const auto cut = write("cut.gz", std::string_view(whole).substr(0, whole.size() - 5));
  EXPECT_NE(message_of([&] { read_all(cut); }).find("cut.gz: the gzip data is cut short"), std::string::npos);
  auto broken = whole;
  broken[broken.size() / 2] ^= 0x55;
  const auto path = write("broken.gz", broken);
  EXPECT_NE(message_of([&] { read_all(path); }).find("broken.gz: damaged gzip data"), std::string::npos);
  const auto trailing = write("trailing.gz", gzip("text") + "garbage");
  EXPECT_NE(message_of([&] { read_all(trailing); }).find("trailing.gz: damaged gzip data"), std::string::npos);
}

TEST_F(ByteStreamTest, Zstd) {
  const auto skippable = std::string("\x53\x2a\x4d\x18\x02\x00\x00\x00hi", 10);
  const auto path = write("a.zst", skippable + std::string(kZstd) + std::string(kZstd));
  const auto cut = write("cut.zst", kZstd.substr(0, kZstd.size() - 2));
  if (!zstd_available()) {
    EXPECT_NE(message_of([&] { read_all(path); }).find("libzstd"), std::string::npos);
    return;
  }
  const std::string once = "hello zstd\nhello zstd\nhello zstd\n";
  EXPECT_EQ(read_all(path), once + once);
  EXPECT_NE(message_of([&] { read_all(cut); }).find("cut.zst: the zstd data is cut short"), std::string::npos);
  auto broken = std::string(kZstd);
  broken[7] ^= 0x7f;
  const auto bad = write("bad.zst", broken);
  EXPECT_NE(message_of([&] { read_all(bad); }).find("bad.zst: damaged zstd data"), std::string::npos);
}

}  // namespace
}  // namespace essh
