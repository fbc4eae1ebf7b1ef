// The strict parser of parse_safetensors_header.
#include <algorithm>
#include <numeric>
#include <optional>
#include <tuple>

#include "base/errors.h"
#include "base/texts.h"
#include "hf/header_cursor.h"
#include "hf/safetensors_header.h"

namespace longshore {
namespace {

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
