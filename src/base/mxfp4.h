// The 4-bit format of gpt_oss's experts: values in groups of 32 with a shared exponent. A
// value is one of 16 numbers times a power of two, so it is exact in bf16. Pure functions; any
// thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bytes.h"

namespace longshore {

// Mxfp4Layout: the offsets of the parts of a packed matrix. The matrix of values is [inputs,
// outputs]; files and packed bytes hold its transpose, and each 32 values of a row of that are a
// group:
//
//   [ two values a byte, by rows, the first in the lower half | exponents plus 127, by rows |
//     padding to 4 bytes ]
class Mxfp4Layout {
 public:
  static constexpr int64_t kGroup = 32;       // values with one exponent
  static constexpr int64_t kGroupBytes = 16;  // of a group's values

  // `inputs` is a multiple of kGroup.
  Mxfp4Layout(int64_t inputs, int64_t outputs) : inputs_(inputs), outputs_(outputs) {}
  int64_t outputs() const { return outputs_; }
  int64_t elements() const { return inputs_ * outputs_; }
  int64_t groups() const { return inputs_ / kGroup; }  // of an output
  Bytes scales_begin() const { return elements() / 2; }
  Bytes scales_bytes() const { return outputs_ * groups(); }
  Bytes bytes() const { return align_up(scales_begin() + scales_bytes(), 4); }

 private:
  int64_t inputs_;
  int64_t outputs_;
};

// The numbers of the 16 codes.
inline constexpr std::array<float, 16> kMxfp4Numbers = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,
                                                        4.0F,  6.0F,  -0.0F, -0.5F, -1.0F, -1.5F,
                                                        -2.0F, -3.0F, -4.0F, -6.0F};

// Returns the power of two of each stored exponent.
const std::array<float, 256>& mxfp4_powers();

// Packs the finite values of a group by the rule of the OCP Microscaling specification (1.0,
// section 6.3): the group's exponent is that of its largest magnitude, less 2, and a value is the
// number nearest to its quotient, of two the one with the even code; quotients beyond 6 become 6.
// Writes two codes a byte, the first in the lower half, and returns the exponent plus 127.
// Exponents below -127 become -127, also that of a group of zeros.
uint8_t encode_mxfp4_group(std::span<const float, Mxfp4Layout::kGroup> values,
                           std::span<uint8_t, Mxfp4Layout::kGroupBytes> codes);

// Consecutive outputs of a matrix in stored form.
struct Mxfp4Outputs {
  int64_t first = 0, count = 0;
  const uint8_t* blocks = nullptr;
  const uint8_t* scales = nullptr;
};

// Writes those of the matrix's values [begin, begin + out.size()) that belong to these outputs.
void decode_mxfp4(const Mxfp4Layout& layout, const Mxfp4Outputs& outputs, int64_t begin,
                  std::span<float> out);

}  // namespace longshore
