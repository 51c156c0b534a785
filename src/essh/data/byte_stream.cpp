#include "essh/data/byte_stream.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "essh/base/error.h"

#if ESSH_HAVE_ZSTD
#include <zstd.h>
#endif

namespace essh {
namespace {

constexpr std::size_t kInputBytes = 256u << 10;

// The file's bytes, with lookahead.
class RawStream : public ByteStream {
 public:
  explicit RawStream(const std::filesystem::path& path)
      : name_(path == "-" ? "standard input" : path.string()),
        descriptor_(path == "-" ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_CLOEXEC)),
        owned_(path != "-"),
        buffer_(std::make_unique_for_overwrite<char[]>(kInputBytes)) {
    if (descriptor_ < 0) fail(ErrorKind::BadFile, "{}: cannot open for reading: {}", name_, std::strerror(errno));
    struct stat status {};
    if (::fstat(descriptor_, &status) != 0) fail(ErrorKind::BadFile, "{}: {}", name_, std::strerror(errno));
    seekable_ = owned_ && S_ISREG(status.st_mode);
    size_ = static_cast<std::uint64_t>(status.st_size);
  }
  ~RawStream() override {
    if (owned_ && descriptor_ >= 0) ::close(descriptor_);
  }
  RawStream(const RawStream&) = delete;
  RawStream& operator=(const RawStream&) = delete;

  const std::string& name() const { return name_; }

  // The buffered bytes: at least `wanted`, unless the file ends.
  std::span<const char> peek(std::size_t wanted) {
    while (end_ - begin_ < wanted && !ended_) {
      std::memmove(buffer_.get(), buffer_.get() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
      end_ += read_file(std::span(buffer_.get(), kInputBytes).subspan(end_));
    }
    return {buffer_.get() + begin_, end_ - begin_};
  }
  void use(std::size_t count) {
    begin_ += count;
    consumed_ += count;
  }

  std::size_t read(std::span<char> out) override {
    if (begin_ < end_) {
      const auto take = std::min(out.size(), end_ - begin_);
      std::copy_n(buffer_.get() + begin_, take, out.begin());
      use(take);
      return take;
    }
    const auto got = read_file(out);
    consumed_ += got;
    return got;
  }

  void skip(std::uint64_t count) override {
    if (!seekable_ || consumed_ + count > size_) {
      fail(ErrorKind::BadFile, "{}: cannot continue at byte {}, the input ends before or is a pipe", name_, count);
    }
    consumed_ += count;
    begin_ = end_ = 0;
    if (::lseek(descriptor_, static_cast<off_t>(consumed_), SEEK_SET) < 0) {
      fail(ErrorKind::BadFile, "{}: cannot seek: {}", name_, std::strerror(errno));
    }
  }
  std::uint64_t consumed() const override { return consumed_; }

 private:
  std::size_t read_file(std::span<char> out) {
    while (true) {
      const auto got = ::read(descriptor_, out.data(), out.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail(ErrorKind::BadFile, "{}: read failed at byte {}: {}", name_, consumed_, std::strerror(errno));
      ended_ = got == 0;
      return static_cast<std::size_t>(got);
    }
  }

  std::string name_;
  int descriptor_;
  bool owned_;
  bool seekable_ = false;
  bool ended_ = false;
  std::uint64_t size_ = 0;
  std::uint64_t consumed_ = 0;
  std::unique_ptr<char[]> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

class DecompressedStream : public ByteStream {
 public:
  explicit DecompressedStream(std::unique_ptr<RawStream> raw) : raw_(std::move(raw)) {}
  std::uint64_t consumed() const override { return raw_->consumed(); }
  void skip(std::uint64_t count) override {
    std::vector<char> scratch(kInputBytes);
    while (count > 0) {
      const auto got = read(std::span(scratch).first(std::min<std::uint64_t>(count, scratch.size())));
      if (got == 0)
        fail(ErrorKind::BadFile, "{}: ends {} bytes before the place to continue from", raw_->name(), count);
      count -= got;
    }
  }

 protected:
  std::unique_ptr<RawStream> raw_;
};

class GzipStream : public DecompressedStream {
 public:
  explicit GzipStream(std::unique_ptr<RawStream> raw) : DecompressedStream(std::move(raw)) {
    if (::inflateInit2(&inflate_, MAX_WBITS + 16) != Z_OK) fail(ErrorKind::OutOfMemory, "zlib cannot start");
  }
  ~GzipStream() override { ::inflateEnd(&inflate_); }
  GzipStream(const GzipStream&) = delete;
  GzipStream& operator=(const GzipStream&) = delete;

  std::size_t read(std::span<char> out) override {
    inflate_.next_out = reinterpret_cast<Bytef*>(out.data());
    inflate_.avail_out = static_cast<uInt>(out.size());
    while (inflate_.avail_out == out.size()) {
      const auto input = raw_->peek(1);
      if (input.empty()) {
        if (inside_member_) fail(ErrorKind::BadFile, "{}: the gzip data is cut short", raw_->name());
        return 0;
      }
      if (!inside_member_) {
        ::inflateReset(&inflate_);
        inside_member_ = true;
      }
      inflate_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(input.data()));
      inflate_.avail_in = static_cast<uInt>(input.size());
      const int status = ::inflate(&inflate_, Z_NO_FLUSH);
      raw_->use(input.size() - inflate_.avail_in);
      if (status == Z_STREAM_END)
        inside_member_ = false;
      else if (status != Z_OK && status != Z_BUF_ERROR) {
        fail(ErrorKind::BadFile, "{}: damaged gzip data near byte {}: {}", raw_->name(), raw_->consumed(),
             inflate_.msg != nullptr ? inflate_.msg : "unknown");
      }
    }
    return out.size() - inflate_.avail_out;
  }

 private:
  z_stream inflate_{};
  bool inside_member_ = false;
};

#if ESSH_HAVE_ZSTD
class ZstdStream : public DecompressedStream {
 public:
  explicit ZstdStream(std::unique_ptr<RawStream> raw)
      : DecompressedStream(std::move(raw)), context_(::ZSTD_createDCtx(), ::ZSTD_freeDCtx) {
    if (!context_) fail(ErrorKind::OutOfMemory, "zstd cannot start");
  }

  std::size_t read(std::span<char> out) override {
    ZSTD_outBuffer output{out.data(), out.size(), 0};
    while (output.pos == 0) {
      // A frame may still produce output without further input: the stream ends only when nothing comes out.
      const auto input = raw_->peek(1);
      if (input.empty() && !inside_frame_) return 0;
      ZSTD_inBuffer buffer{input.data(), input.size(), 0};
      const auto left = ::ZSTD_decompressStream(context_.get(), &output, &buffer);
      raw_->use(buffer.pos);
      if (::ZSTD_isError(left)) {
        fail(ErrorKind::BadFile, "{}: damaged zstd data near byte {}: {}", raw_->name(), raw_->consumed(),
             ::ZSTD_getErrorName(left));
      }
      inside_frame_ = left != 0;
      if (input.empty() && output.pos == 0 && inside_frame_) {
        fail(ErrorKind::BadFile, "{}: the zstd data is cut short", raw_->name());
      }
    }
    return output.pos;
  }

 private:
  std::unique_ptr<ZSTD_DCtx, decltype(&::ZSTD_freeDCtx)> context_;
  bool inside_frame_ = false;
};
#endif

bool starts_with(std::span<const char> bytes, std::span<const unsigned char> magic) {
  return bytes.size() >= magic.size() && std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
}

}  // namespace

std::unique_ptr<ByteStream> open_byte_stream(const std::filesystem::path& path) {
  constexpr unsigned char kGzip[] = {0x1f, 0x8b};
  constexpr unsigned char kZstd[] = {0x28, 0xb5, 0x2f, 0xfd};
  constexpr unsigned char kSkippable[] = {0x2a, 0x4d, 0x18};
  auto raw = std::make_unique<RawStream>(path);
  const auto start = raw->peek(4);
  if (starts_with(start, kGzip)) return std::make_unique<GzipStream>(std::move(raw));
  // Parallel compressors write a skippable frame, 5? 2A 4D 18, first.
  const bool skippable = starts_with(start.subspan(start.empty() ? 0 : 1), kSkippable) && (start[0] & 0xf0) == 0x50;
  if (starts_with(start, kZstd) || skippable) {
#if ESSH_HAVE_ZSTD
    return std::make_unique<ZstdStream>(std::move(raw));
#else
    fail(ErrorKind::Unsupported,
         "{}: this build reads no zstd; install libzstd-dev and build again, or unpack the file", raw->name());
#endif
  }
  return raw;
}

bool zstd_available() {
  return ESSH_HAVE_ZSTD != 0;
}

}  // namespace essh
