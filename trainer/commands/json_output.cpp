#include "trainer/commands/json_output.h"

#include "base/log.h"

namespace longshore {
namespace {

std::string text_of(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

void print_json(const Json& value) {
  print_raw(text_of(value, 2));
}

void print_json_line(const Json& value) {
  print_raw(json_line(value));
}

std::string json_line(const Json& value) {
  return text_of(value, -1);
}

}  // namespace longshore
