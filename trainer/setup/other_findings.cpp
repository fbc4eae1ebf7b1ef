#include "trainer/setup/other_findings.h"

#include <algorithm>
#include <charconv>

#include "base/texts.h"
#include "config/toml_document.h"

namespace longshore {

const Json* OtherReader::take(const char* name) {
  found_.read.emplace_back(name);
  const auto member = file_.find(name);
  return member == file_.end() || member->is_null() ? nullptr : &*member;
}

bool OtherReader::flag(const char* name) {
  const Json* value = take(name);
  return value != nullptr && (*value == true || *value == "true");
}

bool OtherReader::denied(const char* name) {
  const Json* value = take(name);
  return value != nullptr && (*value == false || *value == "false");
}

std::optional<double> OtherReader::number(const char* name) {
  const Json* value = take(name);
  if (value == nullptr) return std::nullopt;
  const std::optional<double> found = number_of(*value);
  if (!found) refuse(name, "expected a number, found " + printable(value->dump(), 40));
  return found;
}

std::string OtherReader::text(const char* name) {
  found_.read.emplace_back(name);
  return member_text(file_, name);
}

std::vector<std::string> OtherReader::list(const char* name) {
  const Json* value = take(name);
  return value == nullptr ? std::vector<std::string>{} : texts_of(*value);
}

std::vector<std::string> texts_of(const Json& value) {
  std::vector<std::string> texts;
  if (value.is_array()) {
    for (const Json& element : value) {
      if (element.is_string()) texts.push_back(element.get<std::string>());
    }
    return texts;
  }
  if (!value.is_string()) return texts;
  const std::string& all = value.get_ref<const std::string&>();
  for (size_t begin = 0; begin <= all.size();) {
    const size_t comma = std::min(all.find(',', begin), all.size());
    const size_t first = all.find_first_not_of(" \t", begin);
    if (first < comma) {
      const size_t last = all.find_last_not_of(" \t", comma - 1);
      texts.push_back(all.substr(first, last + 1 - first));
    }
    begin = comma + 1;
  }
  return texts;
}

std::optional<double> number_of(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (!value.is_string()) return std::nullopt;
  const std::string& text = value.get_ref<const std::string&>();
  double number = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::string toml_real(double value) {
  std::string text = formatted("%.15g", value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

std::optional<std::string> toml_of(const Json& value) {
  if (value.is_boolean()) return value.get<bool>() ? "true" : "false";
  if (value.is_number_integer()) return value.dump();
  if (const auto number = number_of(value)) return toml_real(*number);
  if (value.is_string()) return quote_toml(value.get_ref<const std::string&>());
  return std::nullopt;
}

}  // namespace longshore
