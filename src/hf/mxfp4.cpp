#include "hf/mxfp4.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/errors.h"
#include "base/texts.h"

namespace longshore {
namespace {

constexpr int64_t kGroupValues = 32;
constexpr int64_t kGroupBytes = 16;
constexpr Bytes kPieceBytes = kMiB;
constexpr int64_t kMaxGroups = kPieceBytes / kGroupBytes;  // a row must fit in one piece
constexpr int64_t kTileRows = 16;                          // a cache line of fp32 values
// 6 x 2^(252 - 127) is finite, 4 x 2^(253 - 127) is not.
constexpr uint8_t kGreatestSafeScale = 252;

constexpr std::array<float, 16> kValues = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                           -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};

const std::array<float, 256>& scale_values() {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> powers{};
    for (size_t i = 0; i < powers.size(); ++i) {
      powers[i] = std::ldexp(1.0F, static_cast<int>(i) - 127);
    }
    return powers;
  }();
  return table;
}

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

  // Decodes elements [begin, begin + out.size()) of the expert that lie in these rows. It works in
  // tiles of rows, so that input and output both stay in the L1 cache.
  void decode(int64_t begin, std::span<float> out) const {
    const std::array<float, 256>& powers = scale_values();
    const int64_t all = tensor_.rows_, end = begin + static_cast<int64_t>(out.size());
    for (int64_t tile = first_; tile < first_ + rows_; tile += kTileRows) {
      const int64_t last = std::min(tile + kTileRows, first_ + rows_);
      for (int64_t column = begin / all; column * all < end; ++column) {
        const int64_t from = std::max(tile, begin - column * all);
        const int64_t to = std::min(last, end - column * all);
        for (int64_t row = from; row < to; ++row) {
          const int64_t at = (row - first_) * tensor_.groups_ + column / kGroupValues;
          const uint8_t pair =
              blocks_[static_cast<size_t>(at * kGroupBytes + column % kGroupValues / 2)];
          const uint8_t value = column % 2 == 0 ? pair & 15 : pair >> 4;
          out[static_cast<size_t>(column * all + row - begin)] =
              kValues[value] * powers[scales_[static_cast<size_t>(at)]];
        }
      }
    }
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
