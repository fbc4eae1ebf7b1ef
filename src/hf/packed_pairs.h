// PairedTensor: a stored tensor of a model with packed matrices: a tensor of its own, codes with
// their scales, or the scales of other codes. Pure functions.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "hf/packed_tensor.h"

namespace longshore {

struct PairedTensor {
  std::unique_ptr<PackedTensor> packed =
      nullptr;               // set: codes, with the scales that belong to them
  bool scales = false;       // these are scales
  std::string problem = {};  // why the tensor cannot be read; empty: it can
};

// Finds a stored tensor by its name; a null part if there is none.
using FindPart = std::function<PackedTensor::Part(const std::string& name)>;

PairedTensor pair_mxfp4(PackedTensor::Part part, const FindPart& find);
PairedTensor pair_fp8(PackedTensor::Part part, const FindPart& find);

}  // namespace longshore
