#include "trainer/checkpoint/json_fields.h"

#include <optional>

#include "base/errors.h"
#include "base/hash.h"

namespace longshore {

JsonFields::JsonFields(const Json& object, std::string where)
    : object_(object), where_(std::move(where)) {
  if (!object.is_object()) fail("expected an object");
}

const Json& JsonFields::member(const char* key) const {
  const auto found = object_.find(key);
  if (found == object_.end()) fail("member '" + std::string(key) + "' is missing");
  return *found;
}

std::string JsonFields::text(const char* key) const {
  const Json& value = member(key);
  if (!value.is_string()) fail("member '" + std::string(key) + "' is not a string");
  return value.get<std::string>();
}

int64_t JsonFields::count(const char* key, int64_t most) const {
  const Json& value = member(key);
  if (!is_whole_number(value, 0, most)) {
    fail("member '" + std::string(key) + "' is not a whole number from 0 to " +
         std::to_string(most));
  }
  return value.get<int64_t>();
}

uint64_t JsonFields::hash(const char* key) const {
  const std::optional<uint64_t> value = parse_hash(text(key));
  if (!value) fail("member '" + std::string(key) + "' is not 16 hexadecimal digits");
  return *value;
}

const Json& JsonFields::array(const char* key) const {
  const Json& value = member(key);
  if (!value.is_array()) fail("member '" + std::string(key) + "' is not an array");
  return value;
}

void JsonFields::fail(const std::string& what) const {
  throw CheckpointError(where_ + ": " + what);
}

bool is_whole_number(const Json& value, int64_t least, int64_t most) {
  if (!value.is_number_integer()) return false;
  // `get` would wrap an unsigned value above the range of int64.
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(most)) {
    return false;
  }
  return value.get<int64_t>() >= least && value.get<int64_t>() <= most;
}

}  // namespace longshore
