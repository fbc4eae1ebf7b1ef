// Mxfp4: expert matrices in gpt_oss's format: 4-bit values in groups of 32 with a shared exponent,
// stored as two tensors for one bf16 parameter. The files hold
//
//   <name>_blocks  U8 [experts, rows, groups, 16]  two values per byte, the lower half first
//   <name>_scales  U8 [experts, rows, groups]      the exponent, plus 127
//
// and the parameter <name> is the transpose, [experts, groups x 32, rows], as transformers holds
// it. The ModelDirectory owns it. Reading is const and safe from several threads; each read holds
// one bounded piece.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/json.h"
#include "hf/safetensors_reader.h"

namespace longshore {

inline constexpr std::string_view kMxfp4Blocks = "_blocks";
inline constexpr std::string_view kMxfp4Scales = "_scales";

class Mxfp4Tensor {
 public:
  struct Part {
    const SafetensorsFile* file = nullptr;
    const TensorInfo* tensor = nullptr;
  };

  // Returns why the two are not a valid pair; empty if they are.
  static std::string mismatch(const TensorInfo& blocks, const TensorInfo& scales);
  // The parts must have no mismatch and outlive this.
  Mxfp4Tensor(Part blocks, Part scales);

  // Returns the parameter's name, type (BF16), shape and bytes; it has no offset in a file.
  const TensorInfo& values() const { return values_; }
  const Part& blocks() const { return blocks_; }
  const Part& scales() const { return scales_; }

  // Reads elements [begin, begin + out.size()) in row-major order, exactly. Throws DataError for a
  // value that is not finite.
  void read(int64_t begin, std::span<float> out) const;

 private:
  class Piece;
  void read_expert(int64_t expert, int64_t begin, std::span<float> out) const;
  void check_finite(int64_t begin, std::span<const float> out) const;

  Part blocks_, scales_;
  TensorInfo values_;
  int64_t rows_, groups_;
};

// Returns whether config.json declares MXFP4; false without quantization_config. Throws ConfigError
// for other kinds, other families, or unknown keys. `origin` is the file's path.
bool reads_mxfp4(const Json& config, const std::string& origin);

}  // namespace longshore
