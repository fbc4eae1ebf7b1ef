#include "hf/packed_tensor.h"

#include <string_view>

#include "base/texts.h"
#include "hf/fp8_tensor.h"
#include "hf/mxfp4.h"

namespace longshore {
namespace {

std::string with_ending(const std::string& name, std::string_view old_ending,
                        std::string_view ending) {
  return name.substr(0, name.size() - old_ending.size()) + std::string(ending);
}

template <typename Tensor>
PairedTensor paired(PackedTensor::Part codes, PackedTensor::Part scales) {
  if (std::string why = Tensor::mismatch(*codes.tensor, *scales.tensor); !why.empty()) {
    return {.problem = std::move(why)};
  }
  return {.packed = std::make_unique<Tensor>(codes, scales)};
}

PairedTensor without_scales(const std::string& scales) {
  return {.problem = "its scales are missing: '" + printable(scales) + "'"};
}

}  // namespace

PairedTensor pair_mxfp4(PackedTensor::Part part, const FindPart& find) {
  const std::string& name = part.tensor->name;
  if (name.ends_with(kMxfp4Scales)) {
    const std::string blocks = with_ending(name, kMxfp4Scales, kMxfp4Blocks);
    if (find(blocks).tensor != nullptr) return {.scales = true};
    return {.problem = "there is no '" + printable(blocks) + "' that it scales"};
  }
  if (!name.ends_with(kMxfp4Blocks)) return {};
  const std::string scales = with_ending(name, kMxfp4Blocks, kMxfp4Scales);
  const PackedTensor::Part found = find(scales);
  if (found.tensor == nullptr) return without_scales(scales);
  const std::string plain = with_ending(name, kMxfp4Blocks, "");
  if (find(plain).tensor != nullptr) {
    return {.problem = "the files also hold '" + printable(plain) + "'"};
  }
  return paired<Mxfp4Tensor>(part, found);
}

PairedTensor pair_fp8(PackedTensor::Part part, const FindPart& find) {
  const std::string& name = part.tensor->name;
  if (name.ends_with(kFp8Scales)) {
    const std::string codes = with_ending(name, kFp8Scales, "");
    const PackedTensor::Part found = find(codes);
    if (found.tensor == nullptr) {
      return {.problem = "there is no '" + printable(codes) + "' that it scales"};
    }
    if (found.tensor->dtype == TensorDType::kF8E4M3) return {.scales = true};
    return {.problem = "it scales '" + printable(codes) + "', which is in " +
                       std::string(name_of(found.tensor->dtype)) + ", not in F8_E4M3"};
  }
  if (part.tensor->dtype == TensorDType::kI8) {
    return {.problem =
                "I8: pairs of FP4 values, in which some models store their experts, are not "
                "read; take the model's unquantised directory"};
  }
  if (part.tensor->dtype != TensorDType::kF8E4M3) return {};
  const std::string scales = name + std::string(kFp8Scales);
  const PackedTensor::Part found = find(scales);
  return found.tensor == nullptr ? without_scales(scales) : paired<Fp8Tensor>(part, found);
}

}  // namespace longshore
