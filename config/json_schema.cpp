// JSON Schema of the table of keys.
#include "base/json.h"
#include "config/describe.h"
#include "config/field_table.h"

namespace longshore {
namespace {

Json bound(double number, KeyType type) {
  return type == KeyType::kInteger ? Json(static_cast<int64_t>(number)) : Json(number);
}

// Returns the schema of one number of the key.
Json number_schema(const Key& key) {
  const Bounds& bounds = key.bounds;
  const bool integer = key.type == KeyType::kInteger || key.type == KeyType::kIntegers;
  Json schema = {{"type", integer ? "integer" : "number"}};
  if (bounds.min) {
    schema[bounds.min_excluded ? "exclusiveMinimum" : "minimum"] = bound(*bounds.min, key.type);
  }
  if (bounds.max) {
    schema[bounds.max_excluded ? "exclusiveMaximum" : "maximum"] = bound(*bounds.max, key.type);
  }
  return schema;
}

Json list_schema(Json element) {
  return {{"type", "array"}, {"items", std::move(element)}};
}

Json one_member(const char* name, Json value) {
  return {{"type", "object"},
          {"properties", {{name, std::move(value)}}},
          {"required", Json::array({name})},
          {"additionalProperties", false}};
}

Json units_schema() {
  const Json strings = list_schema({{"type", "string"}, {"minLength", 1}});
  return {
      {"anyOf", Json::array({Json{{"enum", {"block", "half", "piece", "auto"}}},
                             one_member("rows", {{"type", "integer"}, {"minimum", 1}}),
                             one_member("classes", strings),
                             one_member("min_parameters", {{"type", "integer"}, {"minimum", 1}}),
                             one_member("groups", list_schema(strings))})}};
}

Json type_schema(const Key& key) {
  switch (key.type) {
    case KeyType::kBool:
      return {{"type", "boolean"}};
    case KeyType::kInteger:
    case KeyType::kReal:
      return number_schema(key);
    case KeyType::kRealPair: {
      Json schema = list_schema(number_schema(key));
      schema["minItems"] = 2;
      schema["maxItems"] = 2;
      return schema;
    }
    case KeyType::kReals:
    case KeyType::kIntegers:
      return list_schema(number_schema(key));
    case KeyType::kTable:
      return {{"type", "object"},
              {"additionalProperties",
               {{"type", Json::array({"string", "number", "boolean", "array"})},
                {"items", {{"type", "string"}}}}}};
    case KeyType::kPatterns:
      return {{"type", "object"}, {"additionalProperties", number_schema(key)}};
    case KeyType::kString:
    case KeyType::kPath:
      return {{"type", "string"}, {"minLength", 1}};
    case KeyType::kPaths:
    case KeyType::kStrings:
      return list_schema({{"type", "string"}, {"minLength", 1}});
    case KeyType::kBytes:
      return {{"type", "string"}, {"pattern", R"(^[0-9]+(\.[0-9]+)? ?([kKMGT]?B|[KMGT]iB)$)"}};
    case KeyType::kDuration:
      return {{"type", "string"}, {"pattern", "^[0-9]+(ms|s|m|h)$"}};
    case KeyType::kChoice:
      return {{"enum", key.choices}};
    case KeyType::kUnits:
      return units_schema();
    case KeyType::kGroups: {
      const Json number = {{"type", "number"}, {"minimum", 0}};
      Json globs = list_schema({{"type", "string"}, {"minLength", 1}});
      globs["minItems"] = 1;
      return list_schema(
          {{"type", "object"},
           {"additionalProperties", false},
           {"required", {"parameters"}},
           {"properties", {{"parameters", globs}, {"lr", number}, {"weight_decay", number}}}});
    }
  }
  return {};
}

Json default_json(const Key& key) {
  const KeyValue value = key.default_value();
  if (std::holds_alternative<AutoValue>(value)) return "auto";
  if (key.type == KeyType::kTable) return Json::object();  // tables are empty by default
  return std::visit(
      [](const auto& held) -> Json {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<Held, AutoValue>) {
          return "auto";
        } else if constexpr (std::is_same_v<Held, UnitsChoice>) {
          return "block";
        } else if constexpr (std::is_same_v<Held, std::vector<ParameterGroup>>) {
          return Json::array();
        } else if constexpr (std::is_same_v<Held, std::vector<PatternNumber>>) {
          return Json::object();  // tables are empty by default
        } else {
          return held;
        }
      },
      value);
}

Json key_schema(const Key& key) {
  Json schema = type_schema(key);
  if (key.allows_auto) {
    Json either = Json::array({std::move(schema), Json{{"const", "auto"}}});
    schema = Json{{"anyOf", std::move(either)}};
  }
  schema["description"] = key.description;
  if (!key.required()) schema["default"] = default_json(key);
  return schema;
}

}  // namespace

std::string json_schema() {
  Json sections = Json::object();
  for (const Section& section : run_file_sections()) {
    Json keys = Json::object();
    for (const Key& key : section.keys) keys[key.name] = key_schema(key);
    sections[section.name] = {{"type", "object"},
                              {"description", section.description},
                              {"additionalProperties", false},
                              {"properties", std::move(keys)}};
  }
  const Json schema = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                       {"title", "Longshore run file"},
                       {"type", "object"},
                       {"additionalProperties", false},
                       {"properties", std::move(sections)}};
  return schema.dump(2) + "\n";
}

}  // namespace longshore
