// Mxfp4: expert matrices in gpt_oss's format: 4-bit values in groups of 32 with a shared exponent,
// stored as two tensors for one bf16 parameter. The files hold
//
//   <name>_blocks  U8 [experts, rows, groups, 16]  two values per byte, the lower half first
//   <name>_scales  U8 [experts, rows, groups]      the exponent, plus 127
//
// and the parameter <name> is the transpose, [experts, groups x 32, rows], as transformers holds
// it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "hf/packed_tensor.h"

namespace longshore {

inline constexpr std::string_view kMxfp4Blocks = "_blocks";
inline constexpr std::string_view kMxfp4Scales = "_scales";

class Mxfp4Tensor final : public PackedTensor {
 public:
  // Returns why the two are not a valid pair; empty if they are.
  static std::string mismatch(const TensorInfo& blocks, const TensorInfo& scales);
  // The parts must have no mismatch and outlive this.
  Mxfp4Tensor(Part blocks, Part scales);

  void read(int64_t begin, std::span<float> out) const override;

 private:
  class Piece;
  void read_expert(int64_t expert, int64_t begin, std::span<float> out) const;
  void check_finite(int64_t begin, std::span<const float> out) const;

  Part blocks_, scales_;
  int64_t rows_, groups_;
};

}  // namespace longshore
