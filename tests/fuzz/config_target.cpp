// config.json: a family's reader accepts or refuses it, and editing its text keeps the meaning of
// the rest.
#include "base/json.h"
#include "hf/json_members.h"
#include "hf/quantisation.h"
#include "hf/tensor_dtype.h"
#include "model/families/families.h"
#include "tests/fuzz/fuzz_targets.h"

namespace longshore {
namespace {

Json without_dtypes(Json config) {
  for (const char* key : {"dtype", "torch_dtype"}) {
    for (Json* json :
         {&config, config.contains("text_config") ? &config["text_config"] : &config}) {
      if (json->is_object()) json->erase(key);
    }
  }
  return config;
}

void check_edits(const std::string& text, const Json& config) {
  const std::string key = "quantization_config";
  Json rest = config;
  rest.erase(key);
  LONGSHORE_CHECK(rest == parse_json(without_member(text, key), {}, "config.json"));
  const Json other = parse_json(with_config_dtype(text, DType::kF32), {}, "config.json");
  LONGSHORE_CHECK(without_dtypes(other) == without_dtypes(config));
}

}  // namespace

bool fuzz_config(std::string_view bytes) {
  const std::string text = python_numbers(bytes);
  const Json config = parse_json(text, {}, "config.json");
  if (!config.is_object()) return false;
  check_edits(text, config);
  read_quantisation(config, "config.json", mxfp4_families());
  const ArchSpec arch = read_arch_spec(config, "config.json");
  LONGSHORE_CHECK(arch.layer_count() > 0 && arch.vocabulary > 0 && arch.hidden > 0);
  return true;
}

}  // namespace longshore
