// The block-scaled 8-bit format of published models (DeepSeek-V3, Qwen3 *-FP8): numbers in
// e4m3 (four bits of exponent, three of mantissa, no infinity), and one scale for each block of
// 128 x 128 of a matrix; the last blocks of a row or column may be smaller. Pure functions; any
// thread.
//
// A value is the product of number and scale in fp32, rounded to bf16, as transformers makes it
// when it loads such a model in bf16.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "base/packed_format.h"

namespace longshore {

// Fp8Layout: the offsets of the parts of a packed matrix of rows x columns (each at least 1):
//
//   [ scales, fp32, by rows of blocks | padding to 16 bytes | codes | padding to 4 bytes ]
class Fp8Layout {
 public:
  static constexpr int64_t kBlock = 128;  // rows, and columns, with one scale

  Fp8Layout(int64_t rows, int64_t columns) : rows_(rows), columns_(columns) {}
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  int64_t elements() const { return rows_ * columns_; }
  int64_t block_rows() const { return (rows_ + kBlock - 1) / kBlock; }
  int64_t block_columns() const { return (columns_ + kBlock - 1) / kBlock; }
  Bytes scales_bytes() const { return 4 * block_rows() * block_columns(); }
  Bytes codes_begin() const { return align_up(scales_bytes(), 16); }
  Bytes bytes() const { return align_up(codes_begin() + elements(), 4); }

 private:
  int64_t rows_;
  int64_t columns_;
};

// Returns the number of each code; NaN for 0x7F and 0xFF.
const std::array<float, 256>& e4m3_numbers();

// Writes the values of codes with one scale.
void decode_fp8_block(std::span<const uint8_t> codes, float scale, std::span<float> out);

// Fp8Scale: the numbers that the scale of a block may be.
enum class Fp8Scale : uint8_t {
  kF32,
  kBF16,        // the scale in fp32, rounded to nearest
  kPowerOfTwo,  // the next power of two that is not below the scale in fp32 (scale_fmt "ue8m0")
};

// Packs a row of blocks: at most 128 rows of finite values, of `columns` each. As transformers'
// quantiser for this format does, a block's scale is its largest magnitude / 448, and its codes are
// of the values divided by the scale as it is stored. `scales` has one for each block of columns.
void encode_fp8_rows(std::span<const float> rows, int64_t columns, Fp8Scale kind,
                     std::span<float> scales, std::span<uint8_t> codes);

// Packs the finite values of a matrix by encode_fp8_rows, with scales in fp32. Holds 128 rows of
// values.
void encode_fp8(const Fp8Layout& layout, const ReadValues& read, std::span<std::byte> packed);

// Returns the values from `begin` on. `packed` has the bytes of the layout.
void decode_fp8(const Fp8Layout& layout, std::span<const std::byte> packed, int64_t begin,
                std::span<float> out);

}  // namespace longshore
