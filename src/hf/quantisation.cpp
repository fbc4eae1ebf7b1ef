#include "hf/quantisation.h"

#include <algorithm>
#include <array>
#include <functional>

#include "base/errors.h"
#include "base/texts.h"

namespace longshore {
namespace {

using Refuse = std::function<void(const std::string& why)>;

// Returns whether a key has one of the values, or is absent or null.
bool is_one_of(const Json& declared, const char* key, std::initializer_list<const char*> values) {
  const auto found = declared.find(key);
  if (found == declared.end() || found->is_null()) return true;
  return std::ranges::any_of(values, [&](const char* value) { return *found == value; });
}

void check_mxfp4(const Json& config, const Json& declared, const Refuse& refuse) {
  const auto family = config.find("model_type");
  if (family == config.end() || *family != "gpt_oss") refuse("mxfp4 is read for gpt_oss alone");
  for (const auto& [key, value] : declared.items()) {
    // The files show which modules are not in MXFP4.
    if (key == "quant_method" || key == "modules_to_not_convert" || key == "dequantize") continue;
    refuse("the key '" + printable(key) + "' is not known");
  }
}

// The files show which modules are in fp8, and activations are not quantised in training.
void check_fp8(const Json& declared, const Refuse& refuse) {
  constexpr std::array<std::string_view, 10> kKnown = {"quant_method",
                                                       "weight_block_size",
                                                       "fmt",
                                                       "scale_fmt",
                                                       "expert_dtype",
                                                       "dequantize",
                                                       "modules_to_not_convert",
                                                       "modules_to_convert",
                                                       "ignored_layers",
                                                       "activation_scheme"};
  for (const auto& [key, value] : declared.items()) {
    if (std::ranges::count(kKnown, key) == 0)
      refuse("the key '" + printable(key) + "' is not known");
  }
  const auto block = declared.find("weight_block_size");
  if (block == declared.end() || *block != Json::array({128, 128})) {
    refuse("fp8 is read in blocks of 128 x 128 (weight_block_size = [128, 128]), and this is " +
           (block == declared.end() ? std::string("not set") : printable(block->dump())));
  }
  if (!is_one_of(declared, "fmt", {"e4m3", "float8_e4m3fn"})) refuse("fp8 is read in e4m3 alone");
  if (!is_one_of(declared, "scale_fmt", {"float", "ue8m0"})) {
    refuse("scale_fmt is neither \"float\" nor \"ue8m0\"");
  }
  if (!is_one_of(declared, "expert_dtype", {"fp8"})) {
    refuse("experts in other formats than fp8, such as FP4, are not read (expert_dtype)");
  }
}

}  // namespace

std::string_view name_of(Quantisation quantisation) {
  constexpr std::array<std::string_view, 3> kNames = {"no packed format", "MXFP4", "fp8"};
  return kNames.at(static_cast<size_t>(quantisation));
}

Quantisation read_quantisation(const Json& config, const std::string& origin) {
  const auto found = config.find("quantization_config");
  if (found == config.end() || found->is_null()) return Quantisation::kNone;
  const Refuse refuse = [&](const std::string& why) {
    throw ConfigError(origin + ": quantization_config: " + why +
                      "; take the model's unquantised directory (F32, BF16 or F16)");
  };
  const auto method = found->is_object() ? found->find("quant_method") : found->end();
  if (found->is_object() && method != found->end() && *method == "mxfp4") {
    check_mxfp4(config, *found, refuse);
    return Quantisation::kMxfp4;
  }
  if (found->is_object() && method != found->end() && *method == "fp8") {
    check_fp8(*found, refuse);
    return Quantisation::kFp8;
  }
  refuse("quantised weights cannot be trained, but for block-scaled fp8, and gpt_oss in mxfp4");
  return Quantisation::kNone;
}

}  // namespace longshore
