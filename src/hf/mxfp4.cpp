#include "hf/mxfp4.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/errors.h"
#include "base/texts.h"

namespace longshore {
namespace {

constexpr int64_t kGroupValues = Mxfp4Layout::kGroup;
constexpr int64_t kGroupBytes = Mxfp4Layout::kGroupBytes;
constexpr Bytes kPieceBytes = kMiB;
constexpr int64_t kMaxGroups = kPieceBytes / kGroupBytes;  // a row must fit in one piece
// 6 x 2^(252 - 127) is finite, 4 x 2^(253 - 127) is not.
constexpr uint8_t kGreatestSafeScale = 252;

std::string shape_mismatch(const TensorInfo& blocks, const TensorInfo& scales) {
  const std::vector<int64_t>& shape = blocks.shape;
  if (shape.size() != 4 || shape[3] != kGroupBytes) {
    return "shape " + format_shape(shape) + " is not [experts, rows, groups, 16]";
  }
  if (std::ranges::count(shape, 0) > 0) return "shape " + format_shape(shape) + " is empty";
  if (shape[2] > kMaxGroups) {
    return "shape " + format_shape(shape) + " has more than " + std::to_string(kMaxGroups) +
           " groups in a row";
  }
  if (scales.shape != std::vector<int64_t>(shape.begin(), shape.end() - 1)) {
    return "its scales have the shape " + format_shape(scales.shape) + ", not that of " +
           format_shape(shape) + " without the last dimension";
  }
  return "";
}

}  // namespace

std::string Mxfp4Tensor::mismatch(const TensorInfo& blocks, const TensorInfo& scales) {
  for (const TensorInfo* tensor : {&blocks, &scales}) {
    if (tensor->dtype == TensorDType::kU8) continue;
    return "dtype " + std::string(name_of(tensor->dtype)) + " of '" + printable(tensor->name) +
           "': MXFP4 is read from U8";
  }
  return shape_mismatch(blocks, scales);
}

Mxfp4Tensor::Mxfp4Tensor(Part blocks, Part scales) : blocks_(blocks), scales_(scales) {
  const std::string problem = mismatch(*blocks.tensor, *scales.tensor);
  LONGSHORE_CHECK(problem.empty()) << problem;
  const std::vector<int64_t>& shape = blocks.tensor->shape;
  rows_ = shape[1];
  groups_ = shape[2];
  const std::string& name = blocks.tensor->name;
  values_.name = name.substr(0, name.size() - kMxfp4Blocks.size());
  values_.dtype = TensorDType::kBF16;
  values_.shape = {shape[0], groups_ * kGroupValues, rows_};
  // The header's parser checked that the blocks' bytes fit in the file, so this fits in 63 bits.
  values_.bytes = blocks.tensor->bytes * 2 * width_of(TensorDType::kBF16);
}

// Some rows of one expert in stored form.
class Mxfp4Tensor::Piece {
 public:
  Piece(const Mxfp4Tensor& tensor, int64_t most_rows)
      : tensor_(tensor),
        blocks_(static_cast<size_t>(most_rows * tensor.groups_ * kGroupBytes)),
        scales_(static_cast<size_t>(most_rows * tensor.groups_)) {}

  void read(int64_t expert, int64_t row, int64_t rows) {
    first_ = row;
    rows_ = rows;
    const int64_t group = (expert * tensor_.rows_ + row) * tensor_.groups_;
    const auto groups = static_cast<size_t>(rows * tensor_.groups_);
    tensor_.blocks_.file->read(*tensor_.blocks_.tensor, group * kGroupBytes,
                               std::as_writable_bytes(std::span(blocks_).first(groups * 16)));
    tensor_.scales_.file->read(*tensor_.scales_.tensor, group,
                               std::as_writable_bytes(std::span(scales_).first(groups)));
  }

  // Decodes elements [begin, begin + out.size()) of the expert that are in these rows.
  void decode(int64_t begin, std::span<float> out) const {
    decode_mxfp4(
        tensor_.layout(),
        {.first = first_, .count = rows_, .blocks = blocks_.data(), .scales = scales_.data()},
        begin, out);
  }

  uint8_t greatest_scale() const {
    return *std::max_element(scales_.begin(), scales_.begin() + rows_ * tensor_.groups_);
  }

 private:
  const Mxfp4Tensor& tensor_;
  int64_t first_ = 0, rows_ = 0;
  std::vector<uint8_t> blocks_, scales_;
};

// Reads elements of one expert; `begin` counts from the expert's first.
void Mxfp4Tensor::read_expert(int64_t expert, int64_t begin, std::span<float> out) const {
  const int64_t end = begin + static_cast<int64_t>(out.size());
  const bool one_column = begin / rows_ == (end - 1) / rows_;
  const int64_t first = one_column ? begin % rows_ : 0;
  const int64_t last = one_column ? (end - 1) % rows_ + 1 : rows_;
  const int64_t most = std::min(kPieceBytes / (groups_ * kGroupBytes), last - first);
  Piece piece(*this, most);
  uint8_t greatest = 0;
  for (int64_t row = first; row < last; row += most) {
    piece.read(expert, row, std::min(most, last - row));
    piece.decode(begin, out);
    greatest = std::max(greatest, piece.greatest_scale());
  }
  if (greatest > kGreatestSafeScale) check_finite(expert * rows_ * values_.shape[1] + begin, out);
}

void Mxfp4Tensor::read(int64_t begin, std::span<float> out) const {
  LONGSHORE_CHECK(begin >= 0 && static_cast<int64_t>(out.size()) <= values_.elements() - begin)
      << values_.name << ": elements from " << begin << ", " << out.size();
  const int64_t per_expert = rows_ * values_.shape[1];
  while (!out.empty()) {
    const int64_t expert = begin / per_expert, inside = begin % per_expert;
    const size_t count = std::min(out.size(), static_cast<size_t>(per_expert - inside));
    read_expert(expert, inside, out.first(count));
    out = out.subspan(count);
    begin += static_cast<int64_t>(count);
  }
}

void Mxfp4Tensor::read_packed(int64_t matrix, Bytes begin, std::span<std::byte> out,
                              const ReadPart& read_part) const {
  const Bytes scales = layout().scales_begin(), scales_end = scales + layout().scales_bytes();
  const Bytes end = begin + static_cast<Bytes>(out.size());
  LONGSHORE_CHECK(begin >= 0 && end <= layout().bytes())
      << values_.name << ": bytes from " << begin << " to " << end;
  const auto padding = static_cast<size_t>(std::clamp<Bytes>(end - scales_end, 0, end - begin));
  std::ranges::fill(out.last(padding), std::byte{0});
  if (begin < scales) {
    const Bytes count = std::min(end, scales) - begin;
    read_part(blocks_, matrix * scales + begin, out.first(static_cast<size_t>(count)));
  }
  const Bytes first = std::max(begin, scales), last = std::min(end, scales_end);
  if (first >= last) return;
  const std::span<std::byte> part =
      out.subspan(static_cast<size_t>(first - begin), static_cast<size_t>(last - first));
  read_part(scales_, matrix * layout().scales_bytes() + first - scales, part);
  for (size_t i = 0; i < part.size(); ++i) {
    if (static_cast<uint8_t>(part[i]) <= kGreatestSafeScale) continue;
    check_group(matrix, first - scales + static_cast<int64_t>(i));
  }
}

// Reads the values of a group, which counts in its expert; that finds those that are not finite.
void Mxfp4Tensor::check_group(int64_t expert, int64_t group) const {
  const int64_t row = group / groups_, input = group % groups_ * kGroupValues;
  for (int64_t i = input; i < input + kGroupValues; ++i) {
    float value = 0.0F;
    read_expert(expert, i * rows_ + row, std::span(&value, 1));
  }
}

void Mxfp4Tensor::check_finite(int64_t begin, std::span<const float> out) const {
  const auto bad = std::ranges::find_if(out, [](float value) { return !std::isfinite(value); });
  if (bad == out.end()) return;
  const int64_t element = begin + (bad - out.begin());
  throw DataError(scales_.file->path() + ": tensor '" + printable(scales_.tensor->name) +
                  "': a scale of expert " + std::to_string(element / (rows_ * values_.shape[1])) +
                  ", row " + std::to_string(element % rows_) +
                  " is too large for its values; the file is damaged, fetch it again");
}

}  // namespace longshore
