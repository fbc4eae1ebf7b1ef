// Helpers for the files that define the table's rows. Internal to config; used only
// while the table is constructed.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "config/field_table.h"

namespace longshore {

// These sections are defined in field_table_data.cpp.
Section data_section();
Section tokenizer_section();
Section eval_section();
// schedule_section is defined in field_table_schedule.cpp.
Section schedule_section();

template <typename Member>
KeyValue to_value(const Member& member) {
  return member;
}
template <typename Value>
KeyValue to_value(const std::optional<Value>& member) {
  return member ? KeyValue(*member) : KeyValue(AutoValue{});
}

template <typename Member>
void assign(Member& member, const KeyValue& value) {
  member = std::get<Member>(value);
}
template <typename Value>
void assign(std::optional<Value>& member, const KeyValue& value) {
  const Value* given = std::get_if<Value>(&value);
  member = given == nullptr ? std::nullopt : std::optional<Value>(*given);
}

template <typename Member>
inline constexpr bool kIsOptional = false;
template <typename Value>
inline constexpr bool kIsOptional<std::optional<Value>> = true;

// An upper bound for steps that a double represents exactly.
inline constexpr double kMaxSteps = 1e9;

// Row holds a key's properties except name, type and member.
struct Row {
  std::string description;
  Bounds bounds = {};
  std::string unit = "";
  std::string example = "";
};

inline Bounds at_least(double min) {
  return {.min = min};
}
inline Bounds between(double min, double max) {
  return {.min = min, .max = max};
}
inline Bounds above(double min) {
  return {.min = min, .min_excluded = true};
}

// Rows appends keys to the section whose struct is `Members`.
template <typename Members>
class Rows {
 public:
  Rows(Section* section, Members RunConfig::* members) : section_(section), members_(members) {}

  // `Owner` is Members or its base.
  template <typename Member, typename Owner>
  void add(const char* name, KeyType type, Member Owner::* member, Row row) {
    Key& key = append(name, type, std::move(row));
    key.allows_auto = kIsOptional<Member>;
    key.get = [members = members_, member](const RunConfig& config) {
      return to_value((config.*members).*member);
    };
    key.set = [members = members_, member](RunConfig& config, const KeyValue& value) {
      assign((config.*members).*member, value);
    };
  }

  template <typename Member>
  void choice(const char* name, Member Members::* member,
              std::vector<std::pair<std::string, Member>> choices, Row row) {
    Key& key = append(name, KeyType::kChoice, std::move(row));
    for (const auto& [text, value] : choices) key.choices.push_back(text);
    key.get = [members = members_, member, choices](const RunConfig& config) -> KeyValue {
      const Member& current = (config.*members).*member;
      for (const auto& [text, value] : choices) {
        if (value == current) return text;
      }
      LONGSHORE_CHECK(false) << "a choice without a name";
      return AutoValue{};
    };
    key.set = [members = members_, member, choices](RunConfig& config, const KeyValue& value) {
      for (const auto& [text, meaning] : choices) {
        if (text == std::get<std::string>(value)) (config.*members).*member = meaning;
      }
    };
  }

 private:
  Key& append(const char* name, KeyType type, Row row) {
    Key key;
    key.section = section_->name;
    key.name = name;
    key.type = type;
    key.description = std::move(row.description);
    key.bounds = row.bounds;
    key.unit = std::move(row.unit);
    key.example = std::move(row.example);
    return section_->keys.emplace_back(std::move(key));
  }

  Section* section_;
  Members RunConfig::* members_;
};

}  // namespace longshore
