// Nf4Tensor: a matrix that bitsandbytes packed in NF4 (base/nf4.h: load_in_4bit). The files hold
//
//   <name>                                  U8, two values a byte, the first in the upper half
//   <name>.absmax                           F32 [blocks], or U8 with double quantisation
//   <name>.quant_map                        F32 [16], the levels of values
//   <name>.nested_absmax                    F32 [groups of scales], only with double quantisation
//   <name>.nested_quant_map                 F32 [256], the levels of scales; likewise
//   <name>.quant_state.bitsandbytes__nf4    U8, JSON: the shape, the size of blocks and groups, the
//                                           mean of the scales
//
// and a value is level times scale in fp32, rounded to bf16: what bitsandbytes' dequantize_4bit
// gives in bf16. A quantised scale is level times the largest of its group, plus the mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/nf4.h"
#include "hf/packed_tensor.h"

namespace longshore {

inline constexpr std::string_view kNf4State = ".quant_state.bitsandbytes__nf4";

// Nf4State holds what the JSON of quant_state says.
struct Nf4State {
  std::vector<int64_t> shape;  // of the matrix
  int64_t group = 0;           // scales with one largest magnitude; 0 without double quantisation
  float mean = 0.0F;           // of the scales
};

// Throws DataError with `origin` for text that is not the state of a matrix in blocks of 64;
// `nested` says whether the scales are quantised.
Nf4State parse_nf4_state(std::string_view text, bool nested, const std::string& origin);

class Nf4Tensor final : public PackedTensor {
 public:
  // The last two are null without double quantisation.
  struct Parts {
    Part codes, state, scales, levels, largest, scale_levels;
    bool nested() const { return largest.tensor != nullptr; }
  };

  // Reads the small parts. Throws DataError with the reason if the parts do not belong together.
  // The parts must outlive this.
  explicit Nf4Tensor(const Parts& parts);

  void read(int64_t begin, std::span<float> out) const override;
  std::vector<Part> parts() const override;
  // Returns kNf4 if the files' levels and groups of scales are those of base/nf4.h, else kNf4F32.
  PackedFormat format() const override { return format_; }
  void read_packed(int64_t matrix, Bytes begin, std::span<std::byte> out,
                   const ReadPart& read_part) const override;

 private:
  void check_shapes() const;
  // Returns a hash of the parts that were read when the files were opened. Who reads the first
  // value reads them once more, so that sums of what a run reads contain them.
  uint64_t hash_of_small(const ReadPart& read_part) const;
  void check_small(const ReadPart& read_part) const;
  void read_scales(int64_t first, std::span<float> out, const ReadPart& read_part) const;
  void read_largest(int64_t first, std::span<float> out, const ReadPart& read_part) const;
  void read_packed_scales(Bytes begin, std::span<std::byte> out, const ReadPart& read_part) const;
  void check_scale(float scale, int64_t block) const;
  int64_t blocks() const { return Nf4Layout(values_.elements()).blocks(); }
  int64_t groups() const { return (blocks() + state_.group - 1) / state_.group; }

  Parts files_;
  Nf4State state_;
  uint64_t small_hash_ = 0;
  std::vector<float> scale_levels_;  // empty without double quantisation
  PackedFormat format_ = PackedFormat::kNf4F32;
};

}  // namespace longshore
