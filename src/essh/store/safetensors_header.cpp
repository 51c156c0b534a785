#include "essh/store/safetensors_header.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "essh/base/error.h"
#include "essh/base/json.h"
#include "essh/base/utf8.h"

namespace essh {
namespace {

constexpr std::string_view kMetadataKey = "__metadata__";

void check_name(std::string_view name, std::string_view place) {
  if (name.size() > kMaxNameBytes) {
    fail(ErrorKind::BadFile, "{}: a tensor name of {} bytes, the limit is {}", place, name.size(), kMaxNameBytes);
  }
  if (has_control_character(name)) {
    fail(ErrorKind::BadFile, "{}: a tensor name contains a control character", place);
  }
}

// Parses events straight into tensors without building a document, so memory stays near the size of the text.
class HeaderReader : public JsonEvents {
 public:
  HeaderReader(SafetensorsHeader& header, std::uint64_t data_bytes, std::string_view place, std::size_t max_tensors)
      : header_(header), data_bytes_(data_bytes), place_(place), max_tensors_(max_tensors) {}

  void null() override { unexpected(); }
  void boolean(bool) override { unexpected(); }
  void number(std::int64_t) override {
    if (where_ == Where::List) {
      fail(ErrorKind::BadFile, "{}: tensor {}: {} contains a negative number", place_, name(), key_);
    }
    unexpected();
  }
  void number(double) override {
    if (where_ == Where::List) {
      fail(ErrorKind::BadFile, "{}: tensor {}: {} contains a number that is not a whole number below 2^64", place_,
           name(), key_);
    }
    unexpected();
  }
  void number(std::uint64_t value) override {
    if (where_ != Where::List) unexpected();
    if (key_ == "shape") {
      if (tensor_.shape.size() == kMaxRank) {
        fail(ErrorKind::BadFile, "{}: tensor {}: more than {} dimensions", place_, name(), kMaxRank);
      }
      tensor_.shape.push_back(value);
    } else {
      if (offsets_ < 2) (offsets_ == 0 ? tensor_.begin : tensor_.end) = value;
      ++offsets_;
    }
  }
  void string(std::string& value) override {
    if (where_ == Where::Metadata) {
      header_.metadata[key_] = std::move(value);
    } else if (where_ == Where::Tensor && key_ == "dtype") {
      const auto dtype = dtype_from_name(value);
      if (!dtype) fail(ErrorKind::BadFile, "{}: tensor {}: unknown dtype {}", place_, name(), in_quotes(value));
      tensor_.dtype = *dtype;
    } else {
      unexpected();
    }
  }
  void begin_object() override {
    if (where_ == Where::Start) {
      where_ = Where::Root;
    } else if (where_ == Where::Root) {
      where_ = in_metadata_ ? Where::Metadata : Where::Tensor;
    } else {
      unexpected();
    }
  }
  void key(std::string& text) override {
    switch (where_) {
      case Where::Root:
        begin_entry(text);
        break;
      case Where::Metadata:
        if (header_.metadata.contains(text)) {
          fail(ErrorKind::BadFile, "{}: the key {} occurs twice in {}", place_, in_quotes(text), kMetadataKey);
        }
        key_ = std::move(text);
        break;
      default:
        begin_field(text);
        break;
    }
  }
  void end_object() override {
    if (where_ == Where::Tensor) end_tensor();
    where_ = where_ == Where::Root ? Where::Done : Where::Root;
  }
  void begin_array() override {
    if (where_ != Where::Tensor || key_ == "dtype") unexpected();
    where_ = Where::List;
  }
  void end_array() override {
    if (key_ == "data_offsets" && offsets_ != 2) {
      fail(ErrorKind::BadFile, "{}: tensor {}: data_offsets has {} numbers, expected 2", place_, name(), offsets_);
    }
    where_ = Where::Tensor;
  }
  void error(std::size_t position) override {
    if (where_ == Where::Done) {
      fail(ErrorKind::BadFile, "{}: bytes follow the JSON object of the header, at header byte {}", place_, position);
    }
    fail(ErrorKind::BadFile, "{}: the header is not valid JSON at header byte {}", place_, position);
  }

 private:
  enum class Where { Start, Root, Metadata, Tensor, List, Done };

  std::string name() const { return in_quotes(tensor_.name); }

  void begin_entry(std::string& text) {
    in_metadata_ = text == kMetadataKey;
    if (in_metadata_) {
      if (has_metadata_) fail(ErrorKind::BadFile, "{}: {} occurs twice", place_, kMetadataKey);
      has_metadata_ = true;
      return;
    }
    if (header_.tensors.size() == max_tensors_)
      fail(ErrorKind::BadFile, "{}: more than {} tensors", place_, max_tensors_);
    check_name(text, place_);
    tensor_ = {};
    tensor_.name = std::move(text);
    has_dtype_ = has_shape_ = has_offsets_ = false;
    offsets_ = 0;
  }

  void begin_field(std::string& text) {
    bool* seen = text == "dtype"          ? &has_dtype_
                 : text == "shape"        ? &has_shape_
                 : text == "data_offsets" ? &has_offsets_
                                          : nullptr;
    if (seen == nullptr) {
      fail(ErrorKind::BadFile, "{}: tensor {}: unknown key {}, expected dtype, shape and data_offsets", place_, name(),
           in_quotes(text));
    }
    if (*seen) fail(ErrorKind::BadFile, "{}: tensor {}: the key \"{}\" occurs twice", place_, name(), text);
    *seen = true;
    key_ = std::move(text);
  }

  void end_tensor() {
    const char* missing = !has_dtype_ ? "dtype" : !has_shape_ ? "shape" : !has_offsets_ ? "data_offsets" : nullptr;
    if (missing != nullptr) fail(ErrorKind::BadFile, "{}: tensor {}: {} is missing", place_, name(), missing);
    const std::uint64_t bytes = checked_tensor_bytes(tensor_, place_);
    const auto [begin, end] = std::pair(tensor_.begin, tensor_.end);
    if (begin > end) {
      fail(ErrorKind::BadFile, "{}: tensor {}: data_offsets [{}, {}] are reversed", place_, name(), begin, end);
    }
    if (end - begin != bytes) {
      fail(ErrorKind::BadFile, "{}: tensor {}: data_offsets [{}, {}] hold {} bytes, its shape and dtype need {}",
           place_, name(), begin, end, end - begin, bytes);
    }
    if (end > data_bytes_) {
      fail(ErrorKind::BadFile,
           "{}: tensor {}: data_offsets [{}, {}] reach beyond the {} bytes of data; the file is truncated or damaged",
           place_, name(), begin, end, data_bytes_);
    }
    header_.tensors.push_back(std::move(tensor_));
  }

  [[noreturn]] void unexpected() const {
    switch (where_) {
      case Where::Root:
        if (in_metadata_) fail(ErrorKind::BadFile, "{}: {} must be an object", place_, kMetadataKey);
        fail(ErrorKind::BadFile, "{}: tensor {}: expected an object", place_, name());
      case Where::Metadata:
        fail(ErrorKind::BadFile, "{}: {}: the value of {} must be a string", place_, kMetadataKey, in_quotes(key_));
      case Where::Tensor:
        fail(ErrorKind::BadFile, "{}: tensor {}: {} must be a {}", place_, name(), key_,
             key_ == "dtype" ? "string" : "list of whole numbers");
      case Where::List:
        fail(ErrorKind::BadFile, "{}: tensor {}: {} must contain whole numbers only", place_, name(), key_);
      default:
        fail(ErrorKind::BadFile, "{}: the header is not a JSON object", place_);
    }
  }

  SafetensorsHeader& header_;
  std::uint64_t data_bytes_;
  std::string_view place_;
  std::size_t max_tensors_;
  Where where_ = Where::Start;
  std::string key_;
  bool in_metadata_ = false, has_metadata_ = false;
  TensorInfo tensor_;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  std::size_t offsets_ = 0;
};

void index_names(SafetensorsHeader& header, std::string_view place) {
  const auto& tensors = header.tensors;
  const auto name = [&](std::uint32_t i) -> const std::string& { return tensors[i].name; };
  header.by_name.resize(tensors.size());
  std::iota(header.by_name.begin(), header.by_name.end(), 0u);
  std::ranges::sort(header.by_name, {}, name);
  const auto twice = std::ranges::adjacent_find(header.by_name, {}, name);
  if (twice != header.by_name.end()) {
    fail(ErrorKind::BadFile, "{}: the tensor {} occurs twice", place, in_quotes(name(*twice)));
  }
}

void check_layout(const SafetensorsHeader& header, std::uint64_t data_bytes, std::string_view place) {
  std::uint64_t end = 0;
  const TensorInfo* previous = nullptr;
  for (const auto& tensor : header.tensors) {
    if (tensor.begin < end) {
      fail(ErrorKind::BadFile, "{}: the data of tensors {} and {} overlap at byte {}", place, in_quotes(previous->name),
           in_quotes(tensor.name), tensor.begin);
    }
    if (tensor.begin > end) {
      fail(ErrorKind::BadFile, "{}: {} bytes before tensor {} belong to no tensor", place, tensor.begin - end,
           in_quotes(tensor.name));
    }
    end = tensor.end;
    previous = &tensor;
  }
  if (end != data_bytes) {
    fail(ErrorKind::BadFile, "{}: {} bytes follow the data of the last tensor; the file has grown or is damaged", place,
         data_bytes - end);
  }
}

}  // namespace

std::uint64_t checked_tensor_bytes(const TensorSpec& tensor, std::string_view place) {
  check_name(tensor.name, place);
  if (tensor.shape.size() > kMaxRank) {
    fail(ErrorKind::BadFile, "{}: tensor {}: more than {} dimensions", place, in_quotes(tensor.name), kMaxRank);
  }
  std::uint64_t bytes = dtype_size(tensor.dtype);
  for (const auto extent : tensor.shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) {
      fail(ErrorKind::BadFile, "{}: tensor {}: the size of shape [{}] overflows 64 bits", place, in_quotes(tensor.name),
           fmt::join(tensor.shape, ", "));
    }
  }
  return bytes;
}

SafetensorsHeader parse_safetensors_header(std::string_view text, std::uint64_t data_bytes, std::string_view place,
                                           std::size_t max_tensors) {
  if (const auto bad = first_invalid_utf8(text)) {
    fail(ErrorKind::BadFile, "{}: the header is not UTF-8 at header byte {}", place, *bad);
  }
  // The JSON parser takes NUL for the end of the text and skips a byte order mark; the format allows neither.
  if (const auto nul = text.find('\0'); nul != std::string_view::npos) {
    fail(ErrorKind::BadFile, "{}: the header contains a NUL at header byte {}", place, nul);
  }
  if (!text.starts_with('{'))
    fail(ErrorKind::BadFile, "{}: the header is not a JSON object: it must start with {{", place);

  SafetensorsHeader header;
  HeaderReader reader(header, data_bytes, place, max_tensors);
  parse_json_events(text, reader);
  std::ranges::sort(header.tensors, {}, [](const TensorInfo& t) { return std::tie(t.begin, t.end, t.name); });
  index_names(header, place);
  check_layout(header, data_bytes, place);
  return header;
}

SafetensorsHeader plan_safetensors(const std::vector<TensorSpec>& tensors, Metadata metadata, std::string_view place) {
  if (tensors.size() > kMaxTensors) fail(ErrorKind::BadFile, "{}: more than {} tensors", place, kMaxTensors);
  SafetensorsHeader header;
  header.metadata = std::move(metadata);
  for (const auto& tensor : tensors) header.tensors.push_back({tensor, 0, 0});
  std::ranges::sort(header.tensors, [](const TensorInfo& a, const TensorInfo& b) {
    return a.dtype != b.dtype ? a.dtype > b.dtype : a.name < b.name;
  });
  std::uint64_t end = 0;
  for (auto& tensor : header.tensors) {
    tensor.begin = end;
    if (__builtin_add_overflow(end, checked_tensor_bytes(tensor, place), &end)) {
      fail(ErrorKind::BadFile, "{}: the tensors together have more than 2^64 bytes", place);
    }
    tensor.end = end;
    if (tensor.name == kMetadataKey || first_invalid_utf8(tensor.name)) {
      fail(ErrorKind::BadFile, "{}: a tensor cannot be named \"{}\"", place,
           tensor.name == kMetadataKey ? kMetadataKey : "(not UTF-8)");
    }
  }
  index_names(header, place);
  return header;
}

std::string safetensors_prefix(const SafetensorsHeader& header, std::string_view place) {
  // Written entry by entry: insertion into an ordered JSON object is quadratic in the number of keys.
  std::string text = "{";
  if (!header.metadata.empty()) text += fmt::format("\"{}\":{}", kMetadataKey, to_text(Json(header.metadata)));
  for (const auto& tensor : header.tensors) {
    text += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", text.size() > 1 ? "," : "",
                        to_text(Json(tensor.name)), dtype_name(tensor.dtype), fmt::join(tensor.shape, ","),
                        tensor.begin, tensor.end);
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > kMaxHeaderBytes) {
    fail(ErrorKind::BadFile, "{}: the header would have {} bytes, the limit is {}", place, text.size(),
         kMaxHeaderBytes);
  }
  std::string prefix(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) prefix[i] = static_cast<char>(text.size() >> (8 * i) & 0xff);
  return prefix + text;
}

}  // namespace essh
