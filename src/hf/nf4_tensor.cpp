#include "hf/nf4_tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/errors.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/number_formats.h"
#include "base/texts.h"

namespace longshore {
namespace {

constexpr int64_t kBlock = Nf4Layout::kBlock;
constexpr int64_t kPieceElements = kBlock << 12;
constexpr Bytes kMaxStateBytes = 4096;
constexpr int64_t kMostInGroup = int64_t{1} << 20;
// A level is at most 1 in magnitude, and times such a scale it is finite in bf16.
constexpr float kGreatestScale = 3e38F;
// bitsandbytes computes with levels of its own, whatever the files say of them.
constexpr float kLevelTolerance = 1e-6F;

std::vector<float> read_floats(const PackedTensor::Part& part) {
  std::vector<float> values(static_cast<size_t>(part.tensor->elements()));
  part.file->read(*part.tensor, 0, std::as_writable_bytes(std::span(values)));
  return values;
}

std::string read_state(const PackedTensor::Part& part) {
  std::string text(static_cast<size_t>(std::min(part.tensor->bytes, kMaxStateBytes)), '\0');
  part.file->read(*part.tensor, 0, std::as_writable_bytes(std::span(text)));
  return text;
}

int64_t integer_of(const Json& state, const char* key, const std::string& origin) {
  const auto found = state.find(key);
  if (found != state.end() && found->is_number_integer() && !found->is_number_unsigned()) {
    throw DataError(origin + ": " + key + " is negative");
  }
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (found == state.end() || !found->is_number_unsigned() || found->get<uint64_t>() > kMost) {
    throw DataError(origin + ": " + key + " is not an integer");
  }
  return found->get<int64_t>();
}

std::vector<int64_t> shape_of(const Json& state, const std::string& origin) {
  const auto found = state.find("shape");
  if (found == state.end() || !found->is_array() || found->size() != 2) {
    throw DataError(origin + ": shape is not that of a matrix, [rows, columns]");
  }
  std::vector<int64_t> shape;
  for (const Json& size : *found) {
    constexpr uint64_t kMost = uint64_t{1} << 31;
    if (!size.is_number_unsigned() || size.get<uint64_t>() == 0 || size.get<uint64_t>() > kMost) {
      throw DataError(origin + ": shape has sizes that are no integers from 1 to 2^31");
    }
    shape.push_back(size.get<int64_t>());
  }
  return shape;
}

// The part of [begin, begin + out.size()) that is in [first, last).
struct Overlap {
  Bytes first = 0;
  std::span<std::byte> bytes;
};
Overlap overlap_of(Bytes begin, std::span<std::byte> out, Bytes first, Bytes last) {
  const Bytes from = std::max(first, begin);
  const Bytes to = std::min(last, begin + static_cast<Bytes>(out.size()));
  if (from >= to) return {};
  return {from, out.subspan(static_cast<size_t>(from - begin), static_cast<size_t>(to - from))};
}

// Copies bytes [begin, begin + out.size()) of an array of floats, of which read(first, floats)
// gives whole ones.
template <typename Read>
void copy_floats(Bytes begin, std::span<std::byte> out, const Read& read) {
  if (out.empty()) return;
  constexpr Bytes kWidth = sizeof(float);
  const int64_t first = begin / kWidth;
  const int64_t last = (begin + static_cast<Bytes>(out.size()) + kWidth - 1) / kWidth;
  std::vector<float> floats(static_cast<size_t>(last - first));
  read(first, std::span(floats));
  std::memcpy(out.data(), std::as_bytes(std::span(floats)).data() + (begin - first * kWidth),
              out.size());
}

}  // namespace

Nf4State parse_nf4_state(std::string_view text, bool nested, const std::string& origin) {
  const Json json = parse_json(text, {.max_bytes = kMaxStateBytes, .max_depth = 4}, origin);
  if (!json.is_object()) throw DataError(origin + ": not a JSON object");
  if (const std::string type = member_text(json, "quant_type"); type != "nf4") {
    throw DataError(origin + ": quant_type is '" + printable(type) + "', not 'nf4'");
  }
  if (const int64_t block = integer_of(json, "blocksize", origin); block != kBlock) {
    throw DataError(origin + ": blocks of " + std::to_string(block) +
                    " values with one scale; NF4 is read in blocks of 64 (blocksize)");
  }
  Nf4State state{.shape = shape_of(json, origin)};
  if (!nested) return state;
  state.group = integer_of(json, "nested_blocksize", origin);
  if (state.group < 1 || state.group > kMostInGroup) {
    throw DataError(origin + ": nested_blocksize is not from 1 to 2^20");
  }
  const auto mean = json.find("nested_offset");
  if (mean == json.end() || !mean->is_number() ||
      !(std::fabs(mean->get<double>()) < static_cast<double>(kGreatestScale))) {
    throw DataError(origin + ": nested_offset is not a number below 3e38");
  }
  state.mean = static_cast<float>(mean->get<double>());
  return state;
}

Nf4Tensor::Nf4Tensor(const Parts& parts) : files_(parts) {
  const TensorInfo& stored = *parts.state.tensor;
  if (stored.dtype != TensorDType::kU8 || stored.bytes > kMaxStateBytes) {
    throw DataError("'" + printable(stored.name) + "' is not U8 of at most 4096 bytes");
  }
  state_ =
      parse_nf4_state(read_state(parts.state), parts.nested(), "'" + printable(stored.name) + "'");
  values_.name = parts.codes.tensor->name;
  values_.dtype = TensorDType::kBF16;
  values_.shape = state_.shape;
  // Sizes up to 2^31 each; 2^62 values would need a file of 2^61 bytes, so the check of the codes
  // comes before the product with the width of a value.
  const int64_t elements = state_.shape[0] * state_.shape[1];
  const TensorInfo& codes = *parts.codes.tensor;
  if (codes.dtype != TensorDType::kU8 || codes.bytes != (elements + 1) / 2) {
    throw DataError(
        "its codes are " + std::string(name_of(codes.dtype)) + " " + format_shape(codes.shape) +
        ", not the U8 [" + std::to_string((elements + 1) / 2) + ", 1] of a matrix " +
        format_shape(state_.shape) + " (other types of bnb_4bit_quant_storage are not read)");
  }
  values_.bytes = elements * width_of(TensorDType::kBF16);
  check_shapes();
  const std::vector<float> levels = read_floats(parts.levels);
  for (size_t i = 0; i < levels.size(); ++i) {
    if (std::fabs(levels[i] - kNf4Levels[i]) <= kLevelTolerance) continue;
    throw DataError("'" + printable(parts.levels.tensor->name) + "' are not the levels of NF4");
  }
  if (parts.nested()) scale_levels_ = read_floats(parts.scale_levels);
  if (!std::ranges::all_of(scale_levels_, [](float level) { return std::fabs(level) <= 1.0F; })) {
    throw DataError("'" + printable(parts.scale_levels.tensor->name) +
                    "' has levels that are not from -1 to 1");
  }
  if (parts.nested() && state_.group == Nf4Layout::kGroup &&
      std::ranges::equal(scale_levels_, nf4_scale_levels())) {
    format_ = PackedFormat::kNf4;
  }
  small_hash_ = hash_of_small(read_cached);
}

void Nf4Tensor::check_shapes() const {
  const auto check = [](const Part& part, TensorDType dtype, int64_t elements) {
    const TensorInfo& tensor = *part.tensor;
    if (tensor.dtype == dtype && tensor.elements() == elements) return;
    throw DataError("'" + printable(tensor.name) + "' is " + std::string(name_of(tensor.dtype)) +
                    " " + format_shape(tensor.shape) + ", not " + std::string(name_of(dtype)) +
                    " [" + std::to_string(elements) + "]");
  };
  check(files_.scales, files_.nested() ? TensorDType::kU8 : TensorDType::kF32, blocks());
  check(files_.levels, TensorDType::kF32, std::ssize(kNf4Levels));
  if (!files_.nested()) return;
  check(files_.largest, TensorDType::kF32, groups());
  check(files_.scale_levels, TensorDType::kF32, std::ssize(nf4_scale_levels()));
}

uint64_t Nf4Tensor::hash_of_small(const ReadPart& read_part) const {
  Hasher hasher;
  const auto add = [&](const Part& part) {
    std::string bytes(static_cast<size_t>(part.tensor->bytes), '\0');
    read_part(part, 0, std::as_writable_bytes(std::span(bytes)));
    hasher.update(bytes);
  };
  add(files_.state);
  add(files_.levels);
  if (files_.nested()) add(files_.scale_levels);
  return hasher.digest();
}

void Nf4Tensor::check_small(const ReadPart& read_part) const {
  if (hash_of_small(read_part) == small_hash_) return;
  throw DataError(files_.state.file->path() + ": tensor '" + printable(values_.name) +
                  "': its quantisation state changed since the model was opened; put it back, or "
                  "start again with the model as it is now");
}

std::vector<PackedTensor::Part> Nf4Tensor::parts() const {
  std::vector<Part> parts = {files_.codes, files_.state, files_.scales, files_.levels};
  if (files_.nested()) parts.insert(parts.end(), {files_.largest, files_.scale_levels});
  return parts;
}

void Nf4Tensor::check_scale(float scale, int64_t block) const {
  if (std::fabs(scale) <= kGreatestScale) return;
  throw DataError(files_.scales.file->path() + ": tensor '" + printable(values_.name) +
                  "': the scale of its values from " + std::to_string(block * kBlock) +
                  " on (in row-major order) is not finite, or too large; the file is damaged, "
                  "fetch it again");
}

void Nf4Tensor::read_largest(int64_t first, std::span<float> out, const ReadPart& read_part) const {
  read_part(files_.largest, first * 4, std::as_writable_bytes(out));
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t group = first + static_cast<int64_t>(i);
    check_scale(std::fabs(out[i]) + std::fabs(state_.mean), group * state_.group);
  }
}

// Reads the scales of blocks from the `first` on.
void Nf4Tensor::read_scales(int64_t first, std::span<float> out, const ReadPart& read_part) const {
  if (!files_.nested()) {
    read_part(files_.scales, first * 4, std::as_writable_bytes(out));
    for (size_t i = 0; i < out.size(); ++i) check_scale(out[i], first + static_cast<int64_t>(i));
    return;
  }
  if (out.empty()) return;
  std::vector<uint8_t> codes(out.size());
  read_part(files_.scales, first, std::as_writable_bytes(std::span(codes)));
  const int64_t first_group = first / state_.group;
  const int64_t last_group = (first + std::ssize(out) - 1) / state_.group;
  std::vector<float> largest(static_cast<size_t>(last_group - first_group + 1));
  read_largest(first_group, largest, read_part);
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t group = (first + static_cast<int64_t>(i)) / state_.group;
    out[i] =
        scale_levels_[codes[i]] * largest[static_cast<size_t>(group - first_group)] + state_.mean;
  }
}

void Nf4Tensor::read(int64_t begin, std::span<float> out) const {
  LONGSHORE_CHECK(begin >= 0 && std::ssize(out) <= values_.elements() - begin)
      << values_.name << ": elements from " << begin << ", " << out.size();
  if (begin == 0 && !out.empty()) check_small(read_cached);
  std::vector<std::byte> codes;  // from the first block on
  std::vector<float> scales;
  while (!out.empty()) {
    const int64_t count = std::min(std::ssize(out), kPieceElements);
    const int64_t first = begin / kBlock, last = (begin + count - 1) / kBlock;
    scales.resize(static_cast<size_t>(last - first + 1));
    read_scales(first, scales, read_cached);
    const int64_t inside = begin - first * kBlock;  // the place of `begin` in the first block
    codes.resize(static_cast<size_t>((inside + count - 1) / 2 + 1));
    read_cached(files_.codes, begin / 2, std::span(codes).subspan(static_cast<size_t>(inside / 2)));
    const std::span<float> piece = out.first(static_cast<size_t>(count));
    decode_nf4_codes(codes, scales, inside, piece);
    for (float& value : piece) value = bf16_to_float(float_to_bf16_nearest(value));
    out = out.subspan(static_cast<size_t>(count));
    begin += count;
  }
}

// Reads bytes of what the packed form has before the codes, as base/nf4.h lays it out.
void Nf4Tensor::read_packed_scales(Bytes begin, std::span<std::byte> out,
                                   const ReadPart& read_part) const {
  if (format() == PackedFormat::kNf4F32) {
    const Overlap scales = overlap_of(begin, out, 0, 4 * blocks());
    copy_floats(scales.first, scales.bytes, [&](int64_t first, std::span<float> floats) {
      read_scales(first, floats, read_part);
    });
    return;
  }
  const Nf4Layout layout(values_.elements());
  const Overlap mean = overlap_of(begin, out, 0, layout.largest_begin());
  copy_floats(mean.first, mean.bytes,
              [&](int64_t, std::span<float> floats) { floats.front() = state_.mean; });
  const Overlap largest = overlap_of(begin, out, layout.largest_begin(), layout.scales_begin());
  copy_floats(
      largest.first - layout.largest_begin(), largest.bytes,
      [&](int64_t first, std::span<float> floats) { read_largest(first, floats, read_part); });
  const Overlap scales =
      overlap_of(begin, out, layout.scales_begin(), layout.scales_begin() + blocks());
  if (scales.bytes.empty()) return;
  read_part(files_.scales, scales.first - layout.scales_begin(), scales.bytes);
}

void Nf4Tensor::read_packed(int64_t matrix, Bytes begin, std::span<std::byte> out,
                            const ReadPart& read_part) const {
  const bool nested = format() == PackedFormat::kNf4;
  const Nf4Layout layout(values_.elements());
  const Nf4F32Layout plain(values_.elements());
  const Bytes codes = nested ? layout.codes_begin() : plain.codes_begin();
  LONGSHORE_CHECK(matrix == 0 && begin >= 0 &&
                  begin + std::ssize(out) <= (nested ? layout.bytes() : plain.bytes()))
      << values_.name << ": bytes from " << begin << ", " << out.size();
  std::ranges::fill(out, std::byte{0});  // also the padding
  if (begin == 0 && !out.empty()) check_small(read_part);
  read_packed_scales(begin, out, read_part);
  const Overlap found = overlap_of(begin, out, codes, codes + files_.codes.tensor->bytes);
  if (!found.bytes.empty()) read_part(files_.codes, found.first - codes, found.bytes);
}

}  // namespace longshore
