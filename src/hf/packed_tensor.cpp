#include "hf/packed_tensor.h"

#include <array>
#include <string_view>

#include "base/errors.h"
#include "base/texts.h"
#include "hf/fp8_tensor.h"
#include "hf/mxfp4.h"
#include "hf/nf4_tensor.h"

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

// bitsandbytes writes tensors with these endings too; they are not read.
constexpr std::string_view kFp4State = ".quant_state.bitsandbytes__fp4";
constexpr std::string_view kInt8Scales = ".SCB";

PairedTensor without_scales(const std::string& scales) {
  return {.problem = "its scales are missing: '" + printable(scales) + "'"};
}

}  // namespace

void PackedTensor::read_cached(const Part& part, Bytes begin, std::span<std::byte> out) {
  part.file->read(*part.tensor, begin, out);
}

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

PairedTensor pair_nf4(PackedTensor::Part part, const FindPart& find) {
  constexpr std::array<std::string_view, 6> kEndings = {
      kNf4State, ".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map", kFp4State};
  const std::string& name = part.tensor->name;
  for (const std::string_view ending : kEndings) {
    if (!name.ends_with(ending)) continue;
    const std::string codes = with_ending(name, ending, "");
    if (find(codes).tensor != nullptr) return {.scales = true};
    return {.problem = "there is no '" + printable(codes) + "' that it belongs to"};
  }
  if (name.ends_with(kInt8Scales) || part.tensor->dtype == TensorDType::kI8) {
    return {.problem =
                "a matrix in 8 bits (load_in_8bit), which is not read; take the model's "
                "unquantised directory"};
  }
  const auto with = [&](std::string_view ending) { return find(name + std::string(ending)); };
  if (with(kFp4State).tensor != nullptr) {
    return {.problem =
                "in FP4, and 4-bit matrices are read in NF4 alone; take the model's "
                "unquantised directory, which adapter.base = \"nf4\" packs"};
  }
  if (with(kNf4State).tensor == nullptr) {
    if (with(".absmax").tensor == nullptr) return {};
    return {.problem = "its '" + printable(name + std::string(kNf4State)) + "' is missing"};
  }
  const Nf4Tensor::Parts parts{.codes = part,
                               .state = with(kNf4State),
                               .scales = with(".absmax"),
                               .levels = with(".quant_map"),
                               .largest = with(".nested_absmax"),
                               .scale_levels = with(".nested_quant_map")};
  if (parts.scales.tensor == nullptr) return without_scales(name + ".absmax");
  if (parts.levels.tensor == nullptr) return without_scales(name + ".quant_map");
  if (parts.nested() != (parts.scale_levels.tensor != nullptr)) {
    return without_scales(name + (parts.nested() ? ".nested_quant_map" : ".nested_absmax"));
  }
  try {
    return {.packed = std::make_unique<Nf4Tensor>(parts)};
  } catch (const DataError& error) {
    return {.problem = error.what()};
  }
}

}  // namespace longshore
