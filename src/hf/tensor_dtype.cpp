#include "hf/tensor_dtype.h"

#include <array>
#include <vector>

#include "base/errors.h"

namespace longshore {
namespace {

struct DTypeRow {
  TensorDType dtype;
  std::string_view name;
  Bytes width;
};

// The rows are in the order of the enumeration.
constexpr std::array<DTypeRow, 17> kRows = {{
    {TensorDType::kBool, "BOOL", 1},
    {TensorDType::kU8, "U8", 1},
    {TensorDType::kI8, "I8", 1},
    {TensorDType::kF8E5M2, "F8_E5M2", 1},
    {TensorDType::kF8E4M3, "F8_E4M3", 1},
    {TensorDType::kF8E8M0, "F8_E8M0", 1},
    {TensorDType::kU16, "U16", 2},
    {TensorDType::kI16, "I16", 2},
    {TensorDType::kF16, "F16", 2},
    {TensorDType::kBF16, "BF16", 2},
    {TensorDType::kU32, "U32", 4},
    {TensorDType::kI32, "I32", 4},
    {TensorDType::kF32, "F32", 4},
    {TensorDType::kU64, "U64", 8},
    {TensorDType::kI64, "I64", 8},
    {TensorDType::kF64, "F64", 8},
    {TensorDType::kC64, "C64", 8},
}};

const DTypeRow& row_of(TensorDType dtype) {
  const DTypeRow& row = kRows.at(static_cast<size_t>(dtype));
  LONGSHORE_CHECK(row.dtype == dtype) << row.name;
  return row;
}

// transformers 5 and 4 spell the key differently; the newer spelling wins.
constexpr std::array<std::string_view, 2> kKeys = {"dtype", "torch_dtype"};

std::optional<DType> parse_config_dtype(std::string_view name) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (name == config_name_of(dtype)) return dtype;
  }
  return std::nullopt;
}

std::optional<DType> dtype_of_object(const Json& object) {
  for (const std::string_view key : kKeys) {
    const auto found = object.find(key);
    if (found == object.end() || !found->is_string()) continue;
    return parse_config_dtype(found->get_ref<const std::string&>());
  }
  return std::nullopt;
}

// A string value in the text, without its quotes, and the keys that lead to it.
struct StringValue {
  std::vector<std::string_view> keys;
  size_t begin = 0;
  size_t end = 0;
};

// Finds the string values of valid JSON; keys stay undecoded.
class StringScanner {
 public:
  explicit StringScanner(std::string_view text) : text_(text) {}

  std::vector<StringValue> scan() {
    for (at_ = 0; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '{' || c == '[') {
        keys_.emplace_back();
      } else if (c == '}' || c == ']') {
        LONGSHORE_CHECK(!keys_.empty()) << "unbalanced JSON";
        keys_.pop_back();
      } else if (c == '"') {
        take_string();
      }
    }
    return std::move(values_);
  }

 private:
  void take_string() {
    const size_t begin = ++at_;
    while (at_ < text_.size() && text_[at_] != '"') at_ += text_[at_] == '\\' ? 2 : 1;
    LONGSHORE_CHECK(at_ < text_.size()) << "JSON with an open string";
    const std::string_view content = text_.substr(begin, at_ - begin);
    const size_t next = text_.find_first_not_of(" \t\r\n", at_ + 1);
    if (next != std::string_view::npos && text_[next] == ':') {
      LONGSHORE_CHECK(!keys_.empty()) << "a key outside an object";
      keys_.back() = content;
    } else {
      values_.push_back({keys_, begin, at_});
    }
  }

  std::string_view text_;
  size_t at_ = 0;
  std::vector<std::string_view> keys_;  // the current key of each open object; empty in an array
  std::vector<StringValue> values_;
};

bool is_dtype_value(const StringValue& value) {
  const std::vector<std::string_view>& keys = value.keys;
  const bool place = keys.size() == 1 || (keys.size() == 2 && keys[0] == "text_config");
  return place && (keys.back() == kKeys[0] || keys.back() == kKeys[1]);
}

}  // namespace

Bytes width_of(TensorDType dtype) {
  return row_of(dtype).width;
}

std::string_view name_of(TensorDType dtype) {
  return row_of(dtype).name;
}

std::optional<TensorDType> parse_tensor_dtype(std::string_view name) {
  for (const DTypeRow& row : kRows) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

std::optional<DType> model_dtype(TensorDType dtype) {
  switch (dtype) {
    case TensorDType::kF32:
      return DType::kF32;
    case TensorDType::kBF16:
      return DType::kBF16;
    case TensorDType::kF16:
      return DType::kF16;
    default:
      return std::nullopt;
  }
}

TensorDType tensor_dtype(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return TensorDType::kF32;
    case DType::kBF16:
      return TensorDType::kBF16;
    case DType::kF16:
      return TensorDType::kF16;
  }
  LONGSHORE_CHECK(false) << static_cast<int>(dtype);
  return TensorDType::kF32;
}

std::string_view config_name_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "float32";
    case DType::kBF16:
      return "bfloat16";
    case DType::kF16:
      return "float16";
  }
  return "";
}

std::optional<DType> config_dtype(const Json& config) {
  if (const std::optional<DType> dtype = dtype_of_object(config)) return dtype;
  const auto text_config = config.find("text_config");
  if (text_config == config.end() || !text_config->is_object()) return std::nullopt;
  return dtype_of_object(*text_config);
}

std::string with_config_dtype(const std::string& text, DType dtype) {
  std::string out;
  size_t copied = 0;
  for (const StringValue& value : StringScanner(text).scan()) {
    if (!is_dtype_value(value)) continue;
    out.append(text, copied, value.begin - copied).append(config_name_of(dtype));
    copied = value.end;
  }
  return out.append(text, copied);
}

}  // namespace longshore
