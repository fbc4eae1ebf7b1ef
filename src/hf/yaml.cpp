#include "hf/yaml.h"

#include <yaml_c.h>

#include "base/errors.h"
#include "base/texts.h"

namespace longshore {
namespace {

constexpr size_t kMaxReasonBytes = 300;

std::string take_yaml_string(yamlc_string text) {
  std::string copy(reinterpret_cast<const char*>(text.data), text.size);
  yamlc_string_free(text);
  return copy;
}

}  // namespace

Json yaml_to_json(std::string_view text, const JsonLimits& limits, const std::string& origin) {
  const yamlc_limits most = {.bytes = static_cast<size_t>(limits.max_bytes),
                             .depth = static_cast<size_t>(limits.max_depth),
                             .values = static_cast<size_t>(limits.max_values)};
  yamlc_string json{}, error{};
  if (yamlc_to_json({reinterpret_cast<const uint8_t*>(text.data()), text.size()}, most, &json,
                    &error) != 0) {
    throw DataError(origin + ": " + printable(take_yaml_string(error), kMaxReasonBytes));
  }
  const std::string converted = take_yaml_string(json);
  // Escapes and punctuation make the JSON longer than the YAML.
  JsonLimits own = limits;
  own.max_bytes = static_cast<Bytes>(converted.size());
  return parse_json(converted, own, origin);
}

}  // namespace longshore
