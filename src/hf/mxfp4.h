// Mxfp4: experts' matrices as gpt_oss publishes them: 4-bit values in groups of 32 with one
// exponent each, in two tensors, which stand for one parameter in bf16. The files hold
//
//   <name>_blocks  U8 [experts, rows, groups, 16]  two values a byte, the lower half first
//   <name>_scales  U8 [experts, rows, groups]      the exponent, plus 127
//
// and the parameter <name> is [experts, groups x 32, rows]: the other way round, as transformers
// holds it. Owned by the model's directory; reading is const and safe from several threads, and
// holds one bounded piece at a time.
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

  // Why the two cannot stand for a parameter; empty where they can.
  static std::string mismatch(const TensorInfo& blocks, const TensorInfo& scales);
  // Of two without mismatch; both must outlive this.
  Mxfp4Tensor(Part blocks, Part scales);

  // The parameter: its name, BF16, its shape and its bytes in that type; it has no place in a file.
  const TensorInfo& values() const { return values_; }
  const Part& blocks() const { return blocks_; }
  const Part& scales() const { return scales_; }

  // Elements [begin, begin + out.size()) of the parameter in its own row-major order, exactly.
  // DataError where one is not finite.
  void read(int64_t begin, std::span<float> out) const;

 private:
  class Piece;
  void read_expert(int64_t expert, int64_t begin, std::span<float> out) const;
  void check_finite(int64_t begin, std::span<const float> out) const;

  Part blocks_, scales_;
  TensorInfo values_;
  int64_t rows_, groups_;
};

// What config.json says about MXFP4: false where it has no quantization_config. ConfigError for one
// of another kind, for another family, or with keys that are not known here. `origin`: its path.
bool reads_mxfp4(const Json& config, const std::string& origin);

}  // namespace longshore
