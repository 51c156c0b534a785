#include "essh/store/safetensors.h"

#include <algorithm>
#include <concepts>

#include "essh/base/error.h"
#include "essh/base/utf8.h"

namespace essh {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kBufferBytes = std::size_t{1} << 20;

Metadata with_format(Metadata metadata) {
  metadata["format"] = "pt";
  return metadata;
}

template <class T>
constexpr bool stored_as(DType dtype) {
  return (std::same_as<T, float> && dtype == DType::F32) || (std::same_as<T, double> && dtype == DType::F64) ||
         (std::same_as<T, BFloat16> && dtype == DType::BF16);
}

}  // namespace

SafetensorsFile SafetensorsFile::open(const fs::path& path) {
  return {InputFile(path), path.string()};
}

SafetensorsFile SafetensorsFile::from_memory(std::span<const std::byte> image, std::string place) {
  return {image, std::move(place)};
}

SafetensorsFile::SafetensorsFile(Source source, std::string place)
    : source_(std::move(source)), place_(std::move(place)) {
  const std::uint64_t size = source_size();
  if (size < kLengthBytes) {
    fail(ErrorKind::BadFile, "{}: {} bytes, too short for a safetensors file; it is truncated or of another kind",
         place_, size);
  }
  std::byte prefix[kLengthBytes];
  read_source(0, prefix);
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) length |= std::to_integer<std::uint64_t>(prefix[i]) << (8 * i);
  if (length == 0) fail(ErrorKind::BadFile, "{}: the header is empty; this is no safetensors file", place_);
  if (length > kMaxHeaderBytes) {
    fail(ErrorKind::BadFile, "{}: a header of {} bytes, the limit is {}; this is no safetensors file or it is damaged",
         place_, length, kMaxHeaderBytes);
  }
  if (length > size - kLengthBytes) {
    fail(ErrorKind::BadFile, "{}: a header of {} bytes in a file of {}; the file is truncated or of another kind",
         place_, length, size);
  }
  std::string text(length, '\0');
  read_source(kLengthBytes, std::as_writable_bytes(std::span(text)));
  data_begin_ = kLengthBytes + length;
  header_ = parse_safetensors_header(text, size - data_begin_, place_);
}

std::uint64_t SafetensorsFile::source_size() const {
  return std::visit([](const auto& source) -> std::uint64_t { return source.size(); }, source_);
}

void SafetensorsFile::read_source(std::uint64_t offset, std::span<std::byte> out) const {
  if (const auto* file = std::get_if<InputFile>(&source_)) {
    file->read(offset, out);
  } else {
    std::ranges::copy(std::get<std::span<const std::byte>>(source_).subspan(offset, out.size()), out.begin());
  }
}

void SafetensorsFile::map() {
  const auto& file = std::get<InputFile>(source_);
  mapping_.emplace(file.path());
  if (mapping_->bytes().size() != file.size())
    fail(ErrorKind::BadFile, "{}: its size changed while it was opened", place_);
}

std::span<const std::byte> SafetensorsFile::mapped(const TensorInfo& tensor) const {
  return mapping_.value().bytes().subspan(data_begin_ + tensor.begin, tensor.bytes());
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto name_of = [&](std::uint32_t i) -> std::string_view { return header_.tensors[i].name; };
  const auto found = std::ranges::lower_bound(header_.by_name, name, {}, name_of);
  return found != header_.by_name.end() && name_of(*found) == name ? &header_.tensors[*found] : nullptr;
}

void SafetensorsFile::read(const TensorInfo& tensor, std::span<std::byte> out) const {
  ESSH_ASSERT(out.size() == tensor.bytes());
  read_source(data_begin_ + tensor.begin, out);
}

template <class T>
void SafetensorsFile::read_as(const TensorInfo& tensor, std::span<T> out) const {
  ESSH_ASSERT(out.size() == tensor.elements());
  if (!is_convertible(tensor.dtype)) {
    fail(ErrorKind::Unsupported, "{}: tensor {} is {}; only F32, BF16, F16 and F64 can be read as numbers", place_,
         in_quotes(tensor.name), dtype_name(tensor.dtype));
  }
  if (stored_as<T>(tensor.dtype)) return read(tensor, std::as_writable_bytes(out));
  const std::size_t element = dtype_size(tensor.dtype);
  std::vector<std::byte> buffer(std::min<std::uint64_t>(kBufferBytes, tensor.bytes()));
  for (std::size_t done = 0; done < out.size();) {
    const std::size_t count = std::min(out.size() - done, buffer.size() / element);
    const auto piece = std::span(buffer).first(count * element);
    read_source(data_begin_ + tensor.begin + done * element, piece);
    decode_elements<T>(tensor.dtype, piece, out.subspan(done, count));
    done += count;
  }
}

template void SafetensorsFile::read_as(const TensorInfo&, std::span<float>) const;
template void SafetensorsFile::read_as(const TensorInfo&, std::span<double>) const;
template void SafetensorsFile::read_as(const TensorInfo&, std::span<BFloat16>) const;

SafetensorsWriter::SafetensorsWriter(const fs::path& target, const std::vector<TensorSpec>& tensors, Metadata metadata)
    : header_(plan_safetensors(tensors, with_format(std::move(metadata)), target.string())), file_(target) {
  const std::string prefix = safetensors_prefix(header_, target.string());
  if (file_.place())
    require_space(file_.place()->parent_path(),
                  prefix.size() + (header_.tensors.empty() ? 0 : header_.tensors.back().end));
  file_.write(prefix);
  skip_complete();
}

void SafetensorsWriter::skip_complete() {
  while (current_ < header_.tensors.size() && written_ == header_.tensors[current_].end) ++current_;
}

void SafetensorsWriter::write(const TensorInfo& tensor, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  ESSH_ASSERT(current_ < header_.tensors.size() && header_.tensors[current_].name == tensor.name);
  ESSH_ASSERT(bytes.size() <= header_.tensors[current_].end - written_);
  file_.write(bytes);
  written_ += bytes.size();
  skip_complete();
}

template <class T>
void SafetensorsWriter::write_as(const TensorInfo& tensor, std::span<const T> values) {
  ESSH_ASSERT(is_convertible(tensor.dtype));
  if (stored_as<T>(tensor.dtype)) return write(tensor, std::as_bytes(values));
  const std::size_t element = dtype_size(tensor.dtype);
  std::vector<std::byte> buffer(std::min(kBufferBytes, values.size() * element));
  while (!values.empty()) {
    const std::size_t count = std::min(values.size(), buffer.size() / element);
    const auto piece = std::span(buffer).first(count * element);
    encode_elements<T>(tensor.dtype, values.first(count), piece);
    write(tensor, piece);
    values = values.subspan(count);
  }
}

template void SafetensorsWriter::write_as(const TensorInfo&, std::span<const float>);
template void SafetensorsWriter::write_as(const TensorInfo&, std::span<const double>);
template void SafetensorsWriter::write_as(const TensorInfo&, std::span<const BFloat16>);

void SafetensorsWriter::commit() {
  ESSH_ASSERT(complete());
  file_.commit();
}

void require_space(const fs::path& folder, std::uint64_t bytes) {
  std::error_code unknown;
  const auto space = fs::space(folder.empty() ? fs::path(".") : folder, unknown);
  if (!unknown && space.available < bytes) {
    fail(ErrorKind::BadFile, "{}: {} bytes are needed and {} are free; make room or choose another folder",
         folder.string(), bytes, space.available);
  }
}

}  // namespace essh
