// JsonFields: checked access to the members of an untrusted JSON object. A wrong type or range is a
// CheckpointError with the file and the member. The object must outlive it.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "base/json.h"

namespace longshore {

class JsonFields {
 public:
  JsonFields(const Json& object, std::string where);

  // Returns whether the member exists.
  bool has(const char* key) const { return object_.contains(key); }
  const Json& member(const char* key) const;
  std::string text(const char* key) const;
  // Returns a whole number from 0 to `most`.
  int64_t count(const char* key, int64_t most = std::numeric_limits<int64_t>::max()) const;
  // Returns the value of 16 hexadecimal digits.
  uint64_t hash(const char* key) const;
  const Json& array(const char* key) const;
  JsonFields object(const char* key) const { return {member(key), where_ + ": " + key}; }
  [[noreturn]] void fail(const std::string& what) const;

 private:
  const Json& object_;
  std::string where_;
};

// Returns whether the value is a whole number from `least` to `most`.
bool is_whole_number(const Json& value, int64_t least, int64_t most);

}  // namespace longshore
