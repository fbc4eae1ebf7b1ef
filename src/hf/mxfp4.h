// Mxfp4Tensor: expert matrices in MXFP4 (base/mxfp4.h), stored as two tensors for one bf16
// parameter. The files hold
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
#include <vector>

#include "base/mxfp4.h"
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
  std::vector<Part> parts() const override { return {blocks_, scales_}; }
  PackedFormat format() const override { return PackedFormat::kMxfp4; }
  void read_packed(int64_t matrix, Bytes begin, std::span<std::byte> out,
                   const ReadPart& read_part) const override;

 private:
  class Piece;
  // Returns the layout of an expert.
  Mxfp4Layout layout() const { return {values_.shape[1], values_.shape[2]}; }
  void check_group(int64_t expert, int64_t group) const;
  void read_expert(int64_t expert, int64_t begin, std::span<float> out) const;
  void check_finite(int64_t begin, std::span<const float> out) const;

  Part blocks_, scales_;
  int64_t rows_, groups_;
};

}  // namespace longshore
