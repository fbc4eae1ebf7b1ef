// PackedTensor: a parameter whose files hold it in fewer bits, as two tensors: codes and scales.
// The ModelDirectory owns it. Reading is const and safe from several threads; each read holds one
// bounded piece.
#pragma once

#include <cstdint>
#include <span>

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

 protected:
  TensorInfo values_;
};

}  // namespace longshore
