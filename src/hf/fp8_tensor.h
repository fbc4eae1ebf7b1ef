// Fp8Tensor: a matrix, or a stack of matrices, in block-scaled fp8 (base/fp8.h). The files hold
//
//   <name>            F8_E4M3 [.., rows, columns]
//   <name>_scale_inv  F32, BF16, U8 or F8_E8M0 [.., rows / 128, columns / 128], rounded up
//
// and a value is their product, despite the name of the scales. Scales of 8 bits are exponents,
// plus 127.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fp8.h"
#include "hf/packed_tensor.h"

namespace longshore {

inline constexpr std::string_view kFp8Scales = "_scale_inv";

class Fp8Tensor final : public PackedTensor {
 public:
  // Returns why the two are not a valid pair; empty if they are.
  static std::string mismatch(const TensorInfo& codes, const TensorInfo& scales);
  // The parts must have no mismatch and outlive this.
  Fp8Tensor(Part codes, Part scales);

  void read(int64_t begin, std::span<float> out) const override;
  std::vector<Part> parts() const override { return {codes_, scales_}; }
  PackedFormat format() const override { return PackedFormat::kFp8; }
  void read_packed(int64_t matrix, Bytes begin, std::span<std::byte> out,
                   const ReadPart& read_part) const override;

 private:
  void read_scales(int64_t first, std::span<float> out, const ReadPart& read_part) const;
  void read_packed_scales(int64_t matrix, Bytes begin, std::span<std::byte> out,
                          const ReadPart& read_part) const;
  void read_packed_codes(int64_t matrix, Bytes begin, std::span<std::byte> out,
                         const ReadPart& read_part) const;
  void check_finite(int64_t begin, std::span<const float> values) const;

  Part codes_, scales_;
  Fp8Layout matrix_;
};

}  // namespace longshore
