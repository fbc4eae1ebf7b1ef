#include "hf/safetensors_header.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

#include "base/bytes.h"
#include "base/errors.h"
#include "base/json.h"
#include "base/texts.h"

namespace longshore {
namespace {

std::string quoted(const std::string& text) {
  return Json(text).dump();
}

// `data_begin` counts from the start of the data, as in the header.
std::string format_entry(const TensorInfo& tensor, Bytes data_begin) {
  std::string shape;
  for (const int64_t dimension : tensor.shape) {
    if (!shape.empty()) shape += ',';
    shape += std::to_string(dimension);
  }
  return quoted(tensor.name) + R"(:{"dtype":")" + std::string(name_of(tensor.dtype)) +
         R"(","shape":[)" + shape + R"(],"data_offsets":[)" + std::to_string(data_begin) + "," +
         std::to_string(data_begin + tensor.bytes) + "]}";
}

Bytes checked_bytes(const TensorInfo& tensor) {
  std::optional<Bytes> bytes = width_of(tensor.dtype);
  for (const int64_t dimension : tensor.shape) {
    LONGSHORE_CHECK(bytes.has_value() && dimension >= 0) << tensor.name;
    bytes = checked_multiply(*bytes, dimension);
  }
  LONGSHORE_CHECK(bytes.has_value()) << tensor.name;
  return *bytes;
}

void check_declaration(const TensorInfo& tensor) {
  LONGSHORE_CHECK(!tensor.name.empty() && tensor.name != "__metadata__") << tensor.name;
  LONGSHORE_CHECK(static_cast<int64_t>(tensor.name.size()) <= kMaxTensorNameBytes) << tensor.name;
  LONGSHORE_CHECK(static_cast<int64_t>(tensor.shape.size()) <= kMaxTensorRank) << tensor.name;
}

}  // namespace

std::string format_safetensors_header(const SafetensorsMetadata& metadata,
                                      std::vector<TensorInfo>& tensors) {
  LONGSHORE_CHECK(static_cast<int64_t>(tensors.size()) <= kMaxTensors) << tensors.size();
  std::string json = "{";
  if (!metadata.empty()) {
    json += R"("__metadata__":{)";
    for (const auto& [key, value] : metadata) {
      if (json.back() != '{') json += ',';
      json += quoted(key) + ":" + quoted(value);
    }
    json += '}';
  }
  Bytes cursor = 0;
  for (TensorInfo& tensor : tensors) {
    check_declaration(tensor);
    tensor.bytes = checked_bytes(tensor);
    if (json.size() > 1) json += ',';
    json += format_entry(tensor, cursor);
    tensor.file_begin = cursor;
    const std::optional<Bytes> next = checked_add(cursor, tensor.bytes);
    LONGSHORE_CHECK(next.has_value()) << tensor.name;
    cursor = *next;
  }
  json += '}';
  json.resize(static_cast<size_t>(align_up(static_cast<int64_t>(json.size()), 8)), ' ');
  const auto header_bytes = static_cast<Bytes>(json.size());
  LONGSHORE_CHECK(header_bytes <= kMaxSafetensorsHeaderBytes) << header_bytes;

  std::string out;
  for (int i = 0; i < kSafetensorsPrefixBytes; ++i) {
    out += static_cast<char>(static_cast<uint64_t>(header_bytes) >> (8 * i) & 0xFF);
  }
  out += json;
  for (TensorInfo& tensor : tensors) tensor.file_begin += static_cast<Bytes>(out.size());
  return out;
}

std::string format_shape(const std::vector<int64_t>& shape) {
  return "[" + joined(shape, ", ") + "]";
}

// The strict parser of parse_safetensors_header.

namespace {

// HeaderCursor: a strict reader for the JSON of a safetensors header: objects, arrays, strings and
// non-negative integers. It allocates only the strings that it returns. A parser owns it; one
// thread. The text must outlive it.
//
// The events of the library behind base/json.h could build the table too, but they come after a
// string is whole: an unfinished name of 64 MiB took 512 MiB and 2.7 s until its refusal, here
// 0.7 MiB and 0.1 s. A valid header of 100,000 tensors (12.9 MB) took 0.23 s, here 0.15 s, and 19
// MiB either way.

class HeaderCursor {
 public:
  // `fail` receives the reason of a syntax error and must throw.
  HeaderCursor(std::string_view text, std::function<void(const std::string&)> fail)
      : text_(text), fail_(std::move(fail)) {}

  // Skips space; if the next character is `wanted`, takes it and returns true.
  bool take(char wanted);
  // Skips space and takes `wanted`; fails on any other character.
  void expect(char wanted);
  // Reads a string of at most `max_bytes` decoded bytes: valid UTF-8, no NUL, no lone surrogates.
  std::string string(Bytes max_bytes);
  // Reads an integer from 0 to 2^63 - 1.
  int64_t integer();
  // Fails if anything but space follows.
  void expect_end();
  size_t position() const { return at_; }

 private:
  [[noreturn]] void fail(const std::string& reason);
  void skip_space();
  // Returns the next byte; fails at the end of the text.
  unsigned char next_byte();
  void append_escape(std::string& out);
  uint32_t hex4();

  std::string_view text_;
  std::function<void(const std::string&)> fail_;
  size_t at_ = 0;
};

bool is_digit(unsigned char byte) {
  return byte >= '0' && byte <= '9';
}

void append_code_point(std::string& out, uint32_t code) {
  const auto put = [&out](uint32_t byte) { out += static_cast<char>(byte); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

void HeaderCursor::fail(const std::string& reason) {
  fail_("header byte " + std::to_string(at_) + ": " + reason);
  LONGSHORE_CHECK(false) << "an error handler returned";
  std::terminate();
}

void HeaderCursor::skip_space() {
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (c != ' ' && c != '\n' && c != '\t' && c != '\r') return;
    ++at_;
  }
}

bool HeaderCursor::take(char wanted) {
  skip_space();
  if (at_ >= text_.size() || text_[at_] != wanted) return false;
  ++at_;
  return true;
}

void HeaderCursor::expect(char wanted) {
  if (take(wanted)) return;
  fail(at_ >= text_.size() ? "the header ends in the middle"
                           : std::string("expected '") + wanted + "'");
}

void HeaderCursor::expect_end() {
  skip_space();
  if (at_ < text_.size()) fail("bytes after the header's object");
}

unsigned char HeaderCursor::next_byte() {
  if (at_ >= text_.size()) fail("the header ends in the middle");
  return static_cast<unsigned char>(text_[at_++]);
}

std::string HeaderCursor::string(Bytes max_bytes) {
  expect('"');
  std::string out;
  while (true) {
    const unsigned char byte = next_byte();
    if (byte == '"') return out;
    if (byte < 0x20) fail("a control character in a string");
    if (byte == '\\') {
      append_escape(out);
    } else {
      const size_t bytes = utf8_sequence_bytes(text_, at_ - 1);
      if (bytes == 0) fail("invalid UTF-8");
      out += text_.substr(at_ - 1, bytes);
      at_ += bytes - 1;
    }
    if (static_cast<Bytes>(out.size()) > max_bytes) {
      fail("a string longer than " + format_bytes(max_bytes));
    }
  }
}

uint32_t HeaderCursor::hex4() {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned char byte = next_byte();
    uint32_t digit = 0;
    if (is_digit(byte)) {
      digit = byte - '0';
    } else if ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'f') {
      digit = (byte | 0x20) - 'a' + 10;
    } else {
      fail("a malformed \\u escape");
    }
    value = value << 4 | digit;
  }
  return value;
}

void HeaderCursor::append_escape(std::string& out) {
  const unsigned char kind = next_byte();
  constexpr std::string_view kShort = "\"\\/bfnrt";
  constexpr std::string_view kMeaning = "\"\\/\b\f\n\r\t";
  const size_t found = kShort.find(static_cast<char>(kind));
  if (found != std::string_view::npos) {
    out += kMeaning[found];
    return;
  }
  if (kind != 'u') fail("an unknown escape");
  uint32_t code = hex4();
  if (code == 0) fail("a NUL in a string");
  if (code >= 0xDC00 && code <= 0xDFFF) fail("a lone surrogate");
  if (code >= 0xD800 && code <= 0xDBFF) {
    if (next_byte() != '\\' || next_byte() != 'u') fail("a lone surrogate");
    const uint32_t low = hex4();
    if (low < 0xDC00 || low > 0xDFFF) fail("a lone surrogate");
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  }
  append_code_point(out, code);
}

int64_t HeaderCursor::integer() {
  skip_space();
  unsigned char byte = next_byte();
  if (byte == '-') fail("a negative number");
  if (!is_digit(byte)) fail("expected an integer");
  if (byte == '0' && at_ < text_.size() && is_digit(static_cast<unsigned char>(text_[at_]))) {
    fail("a number with a leading zero");
  }
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  int64_t value = byte - '0';
  while (at_ < text_.size() && is_digit(static_cast<unsigned char>(text_[at_]))) {
    const int64_t digit = text_[at_++] - '0';
    if (value > (kMax - digit) / 10) fail("a number outside 63 bits");
    value = value * 10 + digit;
  }
  if (at_ < text_.size()) {
    const char after = text_[at_];
    if (after == '.' || after == 'e' || after == 'E') fail("a number that is not an integer");
  }
  return value;
}

constexpr std::string_view kMetadataKey = "__metadata__";
constexpr Bytes kMaxKeyBytes = 64;

// Returns the product of the dimensions and the width. With a zero dimension it is 0, but only if
// the other dimensions fit: the result must not depend on their order.
std::optional<Bytes> bytes_of_shape(const std::vector<int64_t>& shape, Bytes width) {
  int64_t product = width;
  bool empty = false;
  for (const int64_t dimension : shape) {
    if (dimension == 0) {
      empty = true;
      continue;
    }
    const std::optional<int64_t> next = checked_multiply(product, dimension);
    if (!next) return std::nullopt;
    product = *next;
  }
  return empty ? 0 : product;
}

class HeaderParser {
 public:
  HeaderParser(std::string_view json, Bytes file_bytes, const std::string& path)
      : path_(path),
        data_begin_(kSafetensorsPrefixBytes + static_cast<Bytes>(json.size())),
        data_bytes_(file_bytes - data_begin_),
        cursor_(json, [this](const std::string& reason) { fail(reason); }) {
    LONGSHORE_CHECK(data_bytes_ >= 0) << path << ": " << file_bytes;
    // Every tensor opens a brace, so their count gives one allocation instead of doubling.
    const int64_t braces = std::count(json.begin(), json.end(), '{');
    header_.tensors.reserve(static_cast<size_t>(std::min(braces, kMaxTensors)));
  }

  SafetensorsHeader parse() {
    cursor_.expect('{');
    if (!cursor_.take('}')) {
      do {
        read_member();
      } while (cursor_.take(','));
      cursor_.expect('}');
    }
    cursor_.expect_end();
    refuse_duplicates();
    check_ranges();
    return std::move(header_);
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const {
    throw DataError(path_ + ": " + (name_.empty() ? "" : "tensor '" + printable(name_) + "': ") +
                    reason);
  }
  [[noreturn]] void fail_at(const TensorInfo& tensor, const std::string& reason) const {
    throw DataError(path_ + ": tensor '" + printable(tensor.name) + "': " + reason);
  }

  void read_member() {
    std::string name = cursor_.string(kMaxTensorNameBytes);
    cursor_.expect(':');
    if (name == kMetadataKey) {
      read_metadata();
      return;
    }
    if (static_cast<int64_t>(header_.tensors.size()) >= kMaxTensors) {
      fail("more than " + std::to_string(kMaxTensors) + " tensors");
    }
    if (name.empty()) fail("a tensor without a name");
    name_ = name;
    header_.tensors.push_back(read_tensor(std::move(name)));
    name_.clear();
  }

  void read_metadata() {
    if (metadata_seen_) fail("__metadata__ occurs twice");
    metadata_seen_ = true;
    Bytes left = kMaxMetadataBytes;
    cursor_.expect('{');
    if (cursor_.take('}')) return;
    do {
      if (static_cast<int64_t>(header_.metadata.size()) >= kMaxMetadataEntries) {
        fail("__metadata__ has more than " + std::to_string(kMaxMetadataEntries) + " entries");
      }
      std::string key = cursor_.string(left);
      cursor_.expect(':');
      std::string value = cursor_.string(left);
      left = std::max<Bytes>(0, left - static_cast<Bytes>(key.size() + value.size()));
      header_.metadata.emplace_back(std::move(key), std::move(value));
    } while (cursor_.take(','));
    cursor_.expect('}');
  }

  TensorInfo read_tensor(std::string name) {
    TensorInfo tensor;
    tensor.name = std::move(name);
    bool has_dtype = false;
    bool has_shape = false;
    bool has_range = false;
    const auto once = [this](bool& seen, const std::string& key) {
      if (seen) fail("key '" + key + "' occurs twice");
      seen = true;
    };
    cursor_.expect('{');
    if (!cursor_.take('}')) {
      do {
        const std::string key = cursor_.string(kMaxKeyBytes);
        cursor_.expect(':');
        if (key == "dtype") {
          once(has_dtype, key);
          tensor.dtype = read_dtype();
        } else if (key == "shape") {
          once(has_shape, key);
          tensor.shape = read_shape();
        } else if (key == "data_offsets") {
          once(has_range, key);
          read_range(tensor);
        } else {
          fail("unknown key '" + printable(key) + "'");
        }
      } while (cursor_.take(','));
      cursor_.expect('}');
    }
    if (!has_dtype) fail("no 'dtype'");
    if (!has_shape) fail("no 'shape'");
    if (!has_range) fail("no 'data_offsets'");
    check_length(tensor);
    return tensor;
  }

  TensorDType read_dtype() {
    const std::string name = cursor_.string(kMaxKeyBytes);
    const std::optional<TensorDType> dtype = parse_tensor_dtype(name);
    if (!dtype) {
      fail("dtype '" + printable(name) +
           "' is not supported; models are read in F32, F16 and BF16");
    }
    return *dtype;
  }

  std::vector<int64_t> read_shape() {
    std::vector<int64_t> shape;
    cursor_.expect('[');
    if (cursor_.take(']')) return shape;
    do {
      if (static_cast<int64_t>(shape.size()) >= kMaxTensorRank) {
        fail("more than " + std::to_string(kMaxTensorRank) + " dimensions");
      }
      shape.push_back(cursor_.integer());
    } while (cursor_.take(','));
    cursor_.expect(']');
    return shape;
  }

  void read_range(TensorInfo& tensor) {
    cursor_.expect('[');
    const int64_t begin = cursor_.integer();
    cursor_.expect(',');
    const int64_t end = cursor_.integer();
    cursor_.expect(']');
    if (begin > end) {
      fail("data_offsets [" + std::to_string(begin) + ", " + std::to_string(end) +
           "] end before they begin");
    }
    if (end > data_bytes_) {
      fail("its data ends at byte " + std::to_string(end) + ", but the file holds only " +
           std::to_string(data_bytes_) + " bytes of data; it is cut short, fetch it again");
    }
    tensor.file_begin = data_begin_ + begin;
    tensor.bytes = end - begin;
  }

  void check_length(const TensorInfo& tensor) const {
    const std::optional<Bytes> needed = bytes_of_shape(tensor.shape, width_of(tensor.dtype));
    const std::string what =
        "shape " + format_shape(tensor.shape) + " of " + std::string(name_of(tensor.dtype));
    if (!needed) fail(what + " is larger than 63 bits can count");
    if (*needed != tensor.bytes) {
      fail(what + " needs " + std::to_string(*needed) + " bytes, data_offsets give " +
           std::to_string(tensor.bytes));
    }
  }

  void refuse_duplicates() const {
    const std::vector<TensorInfo>& tensors = header_.tensors;
    std::vector<uint32_t> order(tensors.size());
    std::iota(order.begin(), order.end(), 0u);
    std::sort(order.begin(), order.end(),
              [&](uint32_t a, uint32_t b) { return tensors[a].name < tensors[b].name; });
    for (size_t i = 1; i < order.size(); ++i) {
      if (tensors[order[i]].name == tensors[order[i - 1]].name) {
        fail_at(tensors[order[i]], "occurs twice");
      }
    }
  }

  // The tensors, in byte order, must fill the file without holes or overlaps.
  void check_ranges() {
    std::vector<TensorInfo>& tensors = header_.tensors;
    const auto before = [](const TensorInfo& a, const TensorInfo& b) {
      return std::tie(a.file_begin, a.bytes, a.name) < std::tie(b.file_begin, b.bytes, b.name);
    };
    std::sort(tensors.begin(), tensors.end(), before);
    Bytes end = data_begin_;
    const TensorInfo* previous = nullptr;
    for (const TensorInfo& tensor : tensors) {
      if (tensor.file_begin > end) {
        fail_at(tensor, std::to_string(tensor.file_begin - end) +
                            " bytes before its data belong to no tensor");
      }
      if (tensor.file_begin < end) {
        fail_at(tensor, "its data overlaps that of '" + printable(previous->name) + "'");
      }
      end = tensor.file_begin + tensor.bytes;
      previous = &tensor;
    }
    const Bytes rest = data_begin_ + data_bytes_ - end;
    if (rest == 0) return;
    const std::string reason = std::to_string(rest) + " bytes after its data belong to no tensor";
    if (previous == nullptr) fail(std::to_string(rest) + " bytes of data, but no tensors");
    fail_at(*previous, reason);
  }

  const std::string& path_;
  const Bytes data_begin_;
  const Bytes data_bytes_;
  HeaderCursor cursor_;
  SafetensorsHeader header_;
  std::string name_;  // of the current tensor
  bool metadata_seen_ = false;
};

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view json, Bytes file_bytes,
                                           const std::string& path) {
  return HeaderParser(json, file_bytes, path).parse();
}

}  // namespace longshore
