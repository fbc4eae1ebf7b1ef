// PackedTensor: a parameter whose files hold it in fewer bits, as several tensors: codes and
// scales. The ModelDirectory owns it. Reading is const and safe from several threads; each read
// holds one bounded piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/packed_format.h"
#include "hf/safetensors_reader.h"

namespace longshore {

class PackedTensor {
 public:
  struct Part {
    const SafetensorsFile* file = nullptr;
    const TensorInfo* tensor = nullptr;
  };

  virtual ~PackedTensor() = default;

  // Returns the parameter's name, type (BF16), shape and bytes; it has no offset in a file.
  const TensorInfo& values() const { return values_; }

  // Reads elements [begin, begin + out.size()) in row-major order, exactly. Throws DataError for a
  // value that is not finite.
  virtual void read(int64_t begin, std::span<float> out) const = 0;

  // Fills the span with the bytes of a part's tensor from `begin` on.
  using ReadPart = std::function<void(const Part& part, Bytes begin, std::span<std::byte> out)>;
  // Returns the tensors that hold the values: codes, scales and what else belongs to them.
  virtual std::vector<Part> parts() const = 0;
  // Returns the format in which the files hold the values.
  virtual PackedFormat format() const = 0;
  // Reads bytes [begin, begin + out.size()) of one matrix of a stack as base/packed_format.h packs
  // it. Throws DataError for a value that is not finite.
  virtual void read_packed(int64_t matrix, Bytes begin, std::span<std::byte> out,
                           const ReadPart& read_part) const = 0;

 protected:
  // Reads a part's tensor itself, as a ReadPart does.
  static void read_cached(const Part& part, Bytes begin, std::span<std::byte> out);
  TensorInfo values_;
};

// PairedTensor: a stored tensor of a model with packed matrices: a plain tensor, codes with their
// scales, or what belongs to codes.
struct PairedTensor {
  std::unique_ptr<PackedTensor> packed =
      nullptr;               // set: codes, with the scales that belong to them
  bool scales = false;       // these are scales, or another part of a packed tensor
  std::string problem = {};  // why the tensor cannot be read; empty if it can
};

// Finds a stored tensor by its name; a null part if there is none.
using FindPart = std::function<PackedTensor::Part(const std::string& name)>;

PairedTensor pair_mxfp4(PackedTensor::Part part, const FindPart& find);
PairedTensor pair_fp8(PackedTensor::Part part, const FindPart& find);
PairedTensor pair_nf4(PackedTensor::Part part, const FindPart& find);

}  // namespace longshore
