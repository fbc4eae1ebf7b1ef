#include "hf/quantisation.h"

#include <algorithm>
#include <array>
#include <functional>

#include "base/errors.h"
#include "base/texts.h"
#include "hf/json_members.h"

namespace longshore {
namespace {

using Refuse = std::function<void(const std::string& why)>;

// Returns whether a key has one of the values, or is absent or null.
bool is_one_of(const Json& declared, const char* key, std::initializer_list<const char*> values) {
  const auto found = declared.find(key);
  if (found == declared.end() || found->is_null()) return true;
  return std::ranges::any_of(values, [&](const char* value) { return *found == value; });
}

void check_mxfp4(const Json& config, const Json& declared, std::span<const std::string> families,
                 const Refuse& refuse) {
  const auto family = config.find("model_type");
  const bool known = family != config.end() && std::ranges::any_of(families, [&](const auto& name) {
                       return *family == name;
                     });
  if (!families.empty() && !known) refuse("mxfp4 is read for " + joined(families, ", ") + " alone");
  for (const auto& [key, value] : declared.items()) {
    // The files show which modules are not in MXFP4.
    if (key == "quant_method" || key == "modules_to_not_convert" || key == "dequantize") continue;
    refuse("the key '" + printable(key) + "' is not known");
  }
}

constexpr std::array<std::string_view, 3> kKeys = {"quantization_config", "compression_config",
                                                   "quantization"};
constexpr std::string_view kTextConfig = "text_config";

// These end the names of parts of packed matrices: of GPTQ and AWQ, compressed-tensors, ModelOpt,
// bitsandbytes, torchao, AQLM, HQQ and MLX.
constexpr std::array<std::string_view, 20> kPackedEndings = {".qweight",
                                                             ".qzeros",
                                                             ".scales",
                                                             ".g_idx",
                                                             ".weight_packed",
                                                             ".weight_scale",
                                                             "_scale_inv",
                                                             ".weight_scale_2",
                                                             ".weight_shape",
                                                             ".weight_zero_point",
                                                             ".weight_global_scale",
                                                             ".weight_qdata",
                                                             ".weight_format",
                                                             ".absmax",
                                                             ".quant_map",
                                                             ".SCB",
                                                             ".codes",
                                                             ".codebooks",
                                                             ".W_q",
                                                             ".biases"};

std::vector<std::string> keys_of(const Json& object) {
  std::vector<std::string> keys;
  for (const std::string_view key : kKeys) {
    const auto found = object.find(key);
    if (found == object.end() || found->is_null()) continue;
    // Only MLX writes an object under this name.
    if (key != "quantization" || found->is_object()) keys.emplace_back(key);
  }
  return keys;
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

// The files show which modules are packed, and in which dtype a run computes is its own choice.
Quantisation read_bitsandbytes(const Json& declared, const Refuse& refuse) {
  constexpr std::string_view kInstead =
      "; adapter.base = \"nf4\" or \"fp8\" packs an unquantised model as it is loaded";
  const auto is_true = [&](const char* key) {
    const auto found = declared.find(key);
    return found != declared.end() && *found == true;
  };
  for (const auto& [key, value] : declared.items()) {
    const std::string_view plain = std::string_view(key).substr(key.starts_with('_') ? 1 : 0);
    if (key == "quant_method" || plain == "load_in_4bit" || plain == "load_in_8bit" ||
        key.starts_with("llm_int8_") || key.starts_with("bnb_4bit_")) {
      continue;
    }
    refuse("the key '" + printable(key) + "' is not known");
  }
  if (is_true("load_in_8bit") || is_true("_load_in_8bit") || !is_true("load_in_4bit")) {
    refuse(
        "of bitsandbytes' formats NF4 is read (load_in_4bit), and 8 bits (load_in_8bit) are not" +
        std::string(kInstead));
  }
  if (!is_one_of(declared, "bnb_4bit_quant_type", {"nf4"})) {
    refuse("bnb_4bit_quant_type = " + printable(declared.at("bnb_4bit_quant_type").dump()) +
           ": 4-bit matrices are read in \"nf4\" alone" + std::string(kInstead));
  }
  if (!is_one_of(declared, "bnb_4bit_quant_storage", {"uint8"})) {
    refuse("bnb_4bit_quant_storage = " + printable(declared.at("bnb_4bit_quant_storage").dump()) +
           ": codes are read in \"uint8\" alone" + std::string(kInstead));
  }
  return is_true("bnb_4bit_use_double_quant") ? Quantisation::kNf4 : Quantisation::kNf4F32;
}

}  // namespace

std::string_view name_of(Quantisation quantisation) {
  constexpr std::array<std::string_view, 5> kNames = {"no packed format", "MXFP4", "fp8", "NF4",
                                                      "NF4"};
  return kNames.at(static_cast<size_t>(quantisation));
}

PackedFormat format_of(Quantisation quantisation) {
  LONGSHORE_CHECK(quantisation != Quantisation::kNone);
  constexpr std::array<PackedFormat, 5> kFormats = {PackedFormat::kNf4, PackedFormat::kMxfp4,
                                                    PackedFormat::kFp8, PackedFormat::kNf4,
                                                    PackedFormat::kNf4F32};
  return kFormats.at(static_cast<size_t>(quantisation));
}

Quantisation read_quantisation(const Json& config, const std::string& origin,
                               std::span<const std::string> mxfp4_families) {
  const auto found = config.find("quantization_config");
  if (found == config.end() || found->is_null()) return Quantisation::kNone;
  const Refuse refuse = [&](const std::string& why) {
    throw ConfigError(origin + ": quantization_config: " + why +
                      "; take the model's unquantised directory (F32, BF16 or F16)");
  };
  const auto method = found->is_object() ? found->find("quant_method") : found->end();
  if (found->is_object() && method != found->end() && *method == "mxfp4") {
    check_mxfp4(config, *found, mxfp4_families, refuse);
    return Quantisation::kMxfp4;
  }
  if (found->is_object() && method != found->end() && *method == "fp8") {
    check_fp8(*found, refuse);
    return Quantisation::kFp8;
  }
  if (found->is_object() && method != found->end() && *method == "bitsandbytes") {
    return read_bitsandbytes(*found, refuse);
  }
  refuse("quantised weights cannot be trained, but for block-scaled fp8, bitsandbytes' NF4, and " +
         (mxfp4_families.empty() ? "" : joined(mxfp4_families, ", ") + " in ") + "mxfp4");
  return Quantisation::kNone;
}

bool has_power_scales(const Json& config) {
  const auto declared = config.find("quantization_config");
  if (declared == config.end() || !declared->is_object()) return false;
  const auto format = declared->find("scale_fmt");
  return format != declared->end() && *format == "ue8m0";
}

std::vector<std::string> quantisation_keys(const Json& config) {
  std::vector<std::string> keys = keys_of(config);
  const auto text = config.find(kTextConfig);
  if (text == config.end() || !text->is_object()) return keys;
  for (const std::string& key : keys_of(*text)) {
    keys.push_back(std::string(kTextConfig) + "." + key);
  }
  return keys;
}

std::string without_quantisation_keys(const std::string& text) {
  const auto without = [](std::string object) {
    for (const std::string_view key : kKeys) object = without_member(object, key);
    return object;
  };
  std::string plain = without(text);
  if (const std::optional<TextRange> inner = member_value(plain, kTextConfig)) {
    const std::string old = plain.substr(inner->begin, inner->end - inner->begin);
    plain = plain.substr(0, inner->begin) + without(old) + plain.substr(inner->end);
  }
  return plain;
}

bool is_packed_part(std::string_view name, TensorDType dtype, size_t dimensions) {
  // No quantiser packs into these types; buffers of positions have them.
  const bool wide = dtype == TensorDType::kBool || dtype == TensorDType::kI64 ||
                    dtype == TensorDType::kU64 || dtype == TensorDType::kF64 ||
                    dtype == TensorDType::kC64;
  const bool fp8 = dtype == TensorDType::kF8E4M3 || dtype == TensorDType::kF8E5M2;
  if (fp8 || (!model_dtype(dtype) && !wide && dimensions > 1)) return true;
  if (name.find(".quant_state.") != name.npos) return true;
  return std::ranges::any_of(kPackedEndings,
                             [name](std::string_view ending) { return name.ends_with(ending); });
}

}  // namespace longshore
