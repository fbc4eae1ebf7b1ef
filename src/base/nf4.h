// The 4-bit number format of QLoRA (Dettmers et al., 2023, arXiv:2305.14314), with double
// quantisation of its scales. Pure functions; any thread.
//
// Values are taken in blocks of 64, in row-major order of the whole tensor. A block has a scale,
// its largest magnitude; a value is stored as the nearest of 16 levels between -1 and 1, times the
// scale. Scales, less their mean, are taken in groups of 256 and stored as one of 256 levels, times
// the largest magnitude of the group. That is 4.127 bits a value.
//
// Levels, blocks and groups are those of bitsandbytes 0.50 (load_in_4bit, nf4, double
// quantisation). With the same mean of the scales, codes, scale codes and values have the same bits
// as those of bitsandbytes on a CPU. The mean may differ by one unit in the last place: it is
// summed here in double and rounded once, in bitsandbytes in an order that depends on the
// processor.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "base/packed_format.h"

namespace longshore {

// Nf4Layout: the offsets of the parts of a packed tensor of `elements` (at least 1) values:
//
//   [ mean of the scales, fp32 | largest of each group, fp32 | scale codes | padding to 16 bytes |
//     codes, two values a byte, the first in the upper half | padding to 4 bytes ]
class Nf4Layout {
 public:
  static constexpr int64_t kBlock = 64;   // values with one scale
  static constexpr int64_t kGroup = 256;  // scales with one largest magnitude

  explicit Nf4Layout(int64_t elements) : elements_(elements) {}
  int64_t elements() const { return elements_; }
  int64_t blocks() const { return (elements_ + kBlock - 1) / kBlock; }
  int64_t groups() const { return (blocks() + kGroup - 1) / kGroup; }
  Bytes largest_begin() const { return Bytes{4}; }
  Bytes scales_begin() const { return largest_begin() + 4 * groups(); }
  Bytes codes_begin() const { return align_up(scales_begin() + blocks(), 16); }
  Bytes bytes() const { return align_up(codes_begin() + (elements_ + 1) / 2, 4); }

 private:
  int64_t elements_;
};

// Nf4F32Layout: the offsets of the parts of a packed tensor whose scales are not quantised, as in
// files of bitsandbytes without double quantisation (4.5 bits a value):
//
//   [ scales, fp32 | padding to 16 bytes | codes, as in Nf4Layout | padding to 4 bytes ]
class Nf4F32Layout {
 public:
  static constexpr int64_t kBlock = Nf4Layout::kBlock;

  explicit Nf4F32Layout(int64_t elements) : elements_(elements) {}
  int64_t elements() const { return elements_; }
  int64_t blocks() const { return (elements_ + kBlock - 1) / kBlock; }
  Bytes codes_begin() const { return align_up(4 * blocks(), 16); }
  Bytes bytes() const { return align_up(codes_begin() + (elements_ + 1) / 2, 4); }

 private:
  int64_t elements_;
};

inline constexpr std::array<float, 16> kNf4Levels = {
    -1.0F,          -0.696192801F, -0.525073051F, -0.394917488F, -0.284441382F, -0.184773430F,
    -0.0910500363F, 0.0F,          0.0795802996F, 0.160930201F,  0.246112302F,  0.337915242F,
    0.440709829F,   0.562617004F,  0.722956836F,  1.0F};

// Returns the levels of scales, in ascending order.
const std::array<float, 256>& nf4_scale_levels();

// Packs the finite values of a tensor, which `read` gives in pieces; `packed` has the bytes of the
// layout. Holds one piece, and 4 bytes for each block.
void encode_nf4(const Nf4Layout& layout, const ReadValues& read, std::span<std::byte> packed);

// Return the values from `begin` on. `packed` has the bytes of the layout.
void decode_nf4(const Nf4Layout& layout, std::span<const std::byte> packed, int64_t begin,
                std::span<float> out);
void decode_nf4_f32(const Nf4F32Layout& layout, std::span<const std::byte> packed, int64_t begin,
                    std::span<float> out);
// Returns the values from `begin` on of codes without a layout; scales[i] is that of block i.
void decode_nf4_codes(std::span<const std::byte> codes, std::span<const float> scales,
                      int64_t begin, std::span<float> out);

}  // namespace longshore
