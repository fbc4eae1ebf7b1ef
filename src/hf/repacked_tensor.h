// RepackedTensor: trained values of a parameter that the model's files hold packed, in the form in
// which they hold it: codes and scales of the same names, types and shapes. The exporter makes one
// for each parameter, uses it on one thread, and gives it up when both tensors are written. It
// holds a row of blocks in fp8, and one expert's matrix in MXFP4.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "base/fp8.h"
#include "base/packed_format.h"
#include "hf/packed_tensor.h"

namespace longshore {

// PackedChange: sums over values of what training changed, and of what packing left of it. Trained
// values are t, those of the base b, and those that the packed form stands for p.
struct PackedChange {
  double size = 0.0;    // t^2
  double error = 0.0;   // (p - t)^2
  double change = 0.0;  // (t - b)^2
  double kept = 0.0;    // (p - b)(t - b)

  void add(float trained, float base, float packed);
  void add(const PackedChange& other);
  // Returns |p - t| / |t|; 0 for zeros.
  double relative_error() const;
  // Returns the part of t - b that p - b has in its direction: 0 if packing lost the change, above
  // 1 if it went further, and 1 where nothing was changed.
  double surviving() const;
  // Returns |p - t| / |t - b|: 1 or more if p is no nearer to t than b is; 0 without an error.
  double error_per_change() const;
};

class RepackedTensor {
 public:
  // Gets the bytes of the codes from the first to the last.
  using WriteCodes = std::function<void(std::span<const std::byte> bytes)>;

  // `base` is in fp8 or MXFP4 and must outlive this. `trained` gives elements of the whole
  // parameter. Blocks of fp8 get scales of the type of the base's, powers of two if that has 8 bits
  // or `powers` is set.
  RepackedTensor(const PackedTensor& base, ReadValues trained, bool powers);

  // Packs all values and returns the bytes of the scales. Blocks with one scale whose values are
  // all those of the base keep the base's codes and scale; others are packed by encode_fp8_rows or
  // encode_mxfp4_group. Throws DataError for values that are not finite or too large.
  std::vector<std::byte> pack(const WriteCodes& codes);
  // Returns the sums of the last `pack`.
  const PackedChange& change() const { return change_; }

 private:
  class Fp8Rows;
  class Mxfp4Expert;
  std::vector<std::byte> pack_fp8(const WriteCodes& codes);
  std::vector<std::byte> pack_mxfp4(const WriteCodes& codes);
  void read_trained(int64_t begin, std::span<float> out) const;
  void add_change(int64_t begin, float trained, float base, float packed);

  const PackedTensor& base_;
  ReadValues trained_;
  bool powers_;
  PackedChange change_;
};

}  // namespace longshore
