#include "hf/fp8_tensor.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/errors.h"
#include "base/number_formats.h"
#include "base/texts.h"

namespace longshore {
namespace {

constexpr int64_t kBlock = Fp8Layout::kBlock;
constexpr int64_t kPieceElements = int64_t{1} << 18;
// 448 times such a scale is finite in bf16.
constexpr float kGreatestSafeScale = 7e35F;
constexpr uint8_t kNoNumber = 0x7F;                     // with either sign
constexpr int64_t kMaxBlockColumns = int64_t{1} << 16;  // the scales of a row are held at once

Fp8Layout matrix_of(const std::vector<int64_t>& shape) {
  return {shape.at(shape.size() - 2), shape.back()};
}

std::vector<int64_t> scales_shape(const std::vector<int64_t>& shape) {
  std::vector<int64_t> scales = shape;
  const Fp8Layout matrix = matrix_of(shape);
  scales.at(shape.size() - 2) = matrix.block_rows();
  scales.back() = matrix.block_columns();
  return scales;
}

bool holds_scales(TensorDType dtype) {
  return dtype == TensorDType::kF32 || dtype == TensorDType::kBF16 || dtype == TensorDType::kU8 ||
         dtype == TensorDType::kF8E8M0;
}

float power_of(uint8_t exponent) {
  return exponent == 255 ? std::nanf("") : std::ldexp(1.0F, static_cast<int>(exponent) - 127);
}

}  // namespace

std::string Fp8Tensor::mismatch(const TensorInfo& codes, const TensorInfo& scales) {
  const std::string shape = "shape " + format_shape(codes.shape);
  if (codes.shape.size() < 2) return shape + " is no matrix";
  if (std::ranges::count(codes.shape, 0) > 0) return shape + " is empty";
  if (matrix_of(codes.shape).block_columns() > kMaxBlockColumns) {
    return shape + " has more than " + std::to_string(kMaxBlockColumns * kBlock) + " columns";
  }
  if (!holds_scales(scales.dtype)) {
    return "its scales are in " + std::string(name_of(scales.dtype)) +
           ", and are read in F32, BF16, U8 and F8_E8M0";
  }
  const std::vector<int64_t> expected = scales_shape(codes.shape);
  if (scales.shape != expected) {
    return "its scales have the shape " + format_shape(scales.shape) + ", not " +
           format_shape(expected) + " for the blocks of 128 x 128 of " + format_shape(codes.shape);
  }
  return "";
}

Fp8Tensor::Fp8Tensor(Part codes, Part scales)
    : codes_(codes), scales_(scales), matrix_(matrix_of(codes.tensor->shape)) {
  const std::string problem = mismatch(*codes.tensor, *scales.tensor);
  LONGSHORE_CHECK(problem.empty()) << problem;
  values_.name = codes.tensor->name;
  values_.dtype = TensorDType::kBF16;
  values_.shape = codes.tensor->shape;
  // The header's parser checked that the codes fit in the file, so this fits in 63 bits.
  values_.bytes = codes.tensor->bytes * width_of(TensorDType::kBF16);
}

// Reads scales from the `first` on, which counts over all matrices.
void Fp8Tensor::read_scales(int64_t first, std::span<float> out, const ReadPart& read_part) const {
  const auto read_as = [&](auto value, const auto& to_float) {
    std::vector<decltype(value)> stored(out.size());
    read_part(scales_, first * static_cast<int64_t>(sizeof(value)),
              std::as_writable_bytes(std::span(stored)));
    std::ranges::transform(stored, out.begin(), to_float);
  };
  switch (scales_.tensor->dtype) {
    case TensorDType::kF32:
      read_as(float{}, [](float scale) { return scale; });
      return;
    case TensorDType::kBF16:
      read_as(uint16_t{}, bf16_to_float);
      return;
    default:
      read_as(uint8_t{}, power_of);
  }
}

void Fp8Tensor::read(int64_t begin, std::span<float> out) const {
  LONGSHORE_CHECK(begin >= 0 && static_cast<int64_t>(out.size()) <= values_.elements() - begin)
      << values_.name << ": elements from " << begin << ", " << out.size();
  const int64_t rows = matrix_.rows(), columns = matrix_.columns();
  std::vector<uint8_t> codes(std::min(out.size(), static_cast<size_t>(kPieceElements)));
  std::vector<float> scales(static_cast<size_t>(matrix_.block_columns()));
  int64_t held = -1;  // the row of blocks that `scales` is of
  while (!out.empty()) {
    const std::span<uint8_t> piece = std::span(codes).first(std::min(out.size(), codes.size()));
    codes_.file->read(*codes_.tensor, begin, std::as_writable_bytes(piece));
    for (size_t done = 0; done < piece.size();) {
      const int64_t at = begin + static_cast<int64_t>(done);
      const int64_t row = at / columns, column = at % columns;
      const int64_t block_row = row / rows * matrix_.block_rows() + row % rows / kBlock;
      if (block_row != held) {
        held = block_row;
        read_scales(block_row * matrix_.block_columns(), scales, read_cached);
      }
      const int64_t left = std::min(kBlock - column % kBlock, columns - column);
      const size_t count = std::min(static_cast<size_t>(left), piece.size() - done);
      decode_fp8_block(piece.subspan(done, count), scales[static_cast<size_t>(column / kBlock)],
                       out.subspan(done, count));
      done += count;
    }
    check_finite(begin, out.first(piece.size()));
    out = out.subspan(piece.size());
    begin += static_cast<int64_t>(piece.size());
  }
}

void Fp8Tensor::read_packed(int64_t matrix, Bytes begin, std::span<std::byte> out,
                            const ReadPart& read_part) const {
  const Bytes end = begin + static_cast<Bytes>(out.size());
  LONGSHORE_CHECK(begin >= 0 && end <= matrix_.bytes())
      << values_.name << ": bytes from " << begin << " to " << end;
  const auto overlap = [&](Bytes first, Bytes last, const auto& fill) {
    first = std::max(first, begin);
    last = std::min(last, end);
    if (first >= last) return;
    fill(first, out.subspan(static_cast<size_t>(first - begin), static_cast<size_t>(last - first)));
  };
  overlap(0, matrix_.scales_bytes(), [&](Bytes first, std::span<std::byte> bytes) {
    read_packed_scales(matrix, first, bytes, read_part);
  });
  const Bytes codes = matrix_.codes_begin(), codes_end = codes + matrix_.elements();
  const auto clear = [](Bytes, std::span<std::byte> bytes) {
    std::ranges::fill(bytes, std::byte{0});
  };
  overlap(matrix_.scales_bytes(), codes, clear);
  overlap(codes_end, end, clear);
  overlap(codes, codes_end, [&](Bytes first, std::span<std::byte> bytes) {
    read_packed_codes(matrix, first - codes, bytes, read_part);
  });
}

// A range may begin and end inside of a scale.
void Fp8Tensor::read_packed_scales(int64_t matrix, Bytes begin, std::span<std::byte> out,
                                   const ReadPart& read_part) const {
  constexpr Bytes kWidth = sizeof(float);
  const int64_t first = begin / kWidth;
  const int64_t last = (begin + static_cast<Bytes>(out.size()) + kWidth - 1) / kWidth;
  std::vector<float> scales(static_cast<size_t>(last - first));
  read_scales(matrix * (matrix_.scales_bytes() / kWidth) + first, scales, read_part);
  std::ranges::copy(std::as_bytes(std::span(scales))
                        .subspan(static_cast<size_t>(begin - first * kWidth), out.size()),
                    out.begin());
  if (std::ranges::all_of(scales,
                          [](float scale) { return std::fabs(scale) < kGreatestSafeScale; }))
    return;
  // Reading its values finds those of them that are not finite.
  std::vector<float> values(
      static_cast<size_t>(std::min<int64_t>(kPieceElements, matrix_.elements())));
  for (int64_t done = 0; done < matrix_.elements(); done += kPieceElements) {
    const int64_t count = std::min(kPieceElements, matrix_.elements() - done);
    read(matrix * matrix_.elements() + done, std::span(values).first(static_cast<size_t>(count)));
  }
}

void Fp8Tensor::read_packed_codes(int64_t matrix, Bytes begin, std::span<std::byte> out,
                                  const ReadPart& read_part) const {
  const int64_t first = matrix * matrix_.elements() + begin;
  read_part(codes_, first, out);
  const auto bad = std::ranges::find_if(
      out, [](std::byte code) { return (static_cast<uint8_t>(code) & kNoNumber) == kNoNumber; });
  if (bad == out.end()) return;
  float value = 0.0F;
  read(first + (bad - out.begin()), std::span(&value, 1));
}

void Fp8Tensor::check_finite(int64_t begin, std::span<const float> values) const {
  const auto bad = std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
  if (bad == values.end()) return;
  const int64_t element = begin + (bad - values.begin());
  throw DataError(codes_.file->path() + ": tensor '" + printable(values_.name) + "': row " +
                  std::to_string(element / matrix_.columns()) + ", column " +
                  std::to_string(element % matrix_.columns()) +
                  " is not finite (a code that is no number, or a scale that is none or too "
                  "large); the file is damaged, fetch it again");
}

}  // namespace longshore
