#include "model/unit_groups.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/errors.h"
#include "base/texts.h"

namespace longshore {
namespace {

using Groups = std::vector<std::vector<UnitId>>;

std::string quoted_list(const std::vector<std::string>& names) {
  constexpr size_t kMaxShown = 8;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMaxShown); ++i) {
    text += (text.empty() ? "\"" : ", \"") + names[i] + "\"";
  }
  return names.size() > kMaxShown ? text + ", ..." : text;
}

std::string unknown(const std::string& what, const std::string& name,
                    const std::vector<std::string>& known) {
  const std::string nearest = nearest_name(name, known);
  return "fsdp.units: the model has no " + what + " \"" + name + "\"" +
         (nearest.empty() ? "" : ", did you mean \"" + nearest + "\"?") + "; it has " +
         quoted_list(known);
}

std::vector<std::string> without_repeats(const std::vector<std::string>& names) {
  std::vector<std::string> distinct;
  for (const std::string& name : names) {
    if (std::ranges::find(distinct, name) == distinct.end()) distinct.push_back(name);
  }
  return distinct;
}

Groups by_classes(const ModelSpec& model, const std::vector<std::string>& classes,
                  const std::vector<std::string>& wanted) {
  const std::vector<std::string> known = without_repeats(classes);
  for (const std::string& name : wanted) {
    if (std::ranges::find(known, name) != known.end()) continue;
    throw ConfigError(unknown("class", name, known));
  }
  Groups groups;
  bool open = false;
  for (size_t i = 0; i < model.units.size(); ++i) {
    const bool alone = std::ranges::find(wanted, classes.at(i)) != wanted.end();
    if (alone || !open) groups.emplace_back();
    groups.back().push_back(model.units[i].id);
    open = !alone;
  }
  return groups;
}

Groups by_size(const ModelSpec& model, int64_t min_parameters) {
  Groups groups;
  int64_t parameters = min_parameters;  // parameters of the last group
  for (const UnitSpec& unit : model.units) {
    if (parameters >= min_parameters) {
      groups.emplace_back();
      parameters = 0;
    }
    groups.back().push_back(unit.id);
    for (const ParamSpec& parameter : unit.parameters) parameters += parameter.elements();
  }
  return groups;
}

Groups by_hand(const ModelSpec& model, const std::vector<std::vector<std::string>>& wanted) {
  std::vector<std::string> names;
  for (const UnitSpec& unit : model.units) names.push_back(unit.name);
  std::map<int32_t, size_t> group_of;
  for (size_t group = 0; group < wanted.size(); ++group) {
    std::vector<int32_t> units;
    for (const std::string& name : wanted[group]) {
      const auto found = std::ranges::find(names, name);
      if (found == names.end()) throw ConfigError(unknown("unit", name, names));
      units.push_back(static_cast<int32_t>(found - names.begin()));
      if (!group_of.emplace(units.back(), group).second) {
        throw ConfigError("fsdp.units: unit \"" + name + "\" is named twice");
      }
    }
    std::ranges::sort(units);
    for (size_t i = 1; i < units.size(); ++i) {
      if (units[i] == units[i - 1] + 1) continue;
      throw ConfigError("fsdp.units: a group must hold units that follow each other; between \"" +
                        names[static_cast<size_t>(units[i - 1])] + "\" and \"" +
                        names[static_cast<size_t>(units[i])] + "\" others are missing");
    }
  }
  Groups groups;
  for (size_t i = 0; i < model.units.size(); ++i) {
    const auto mine = group_of.find(static_cast<int32_t>(i));
    const auto before = group_of.find(static_cast<int32_t>(i) - 1);
    const bool joined =
        mine != group_of.end() && before != group_of.end() && mine->second == before->second;
    if (!joined) groups.emplace_back();
    groups.back().push_back(model.units[i].id);
  }
  return groups;
}

}  // namespace

std::vector<std::vector<UnitId>> group_units(const ModelSpec& model,
                                             const std::vector<std::string>& classes,
                                             const UnitPolicy& policy) {
  switch (policy.kind) {
    case UnitPolicy::Kind::kBlock:
    case UnitPolicy::Kind::kHalf:
    case UnitPolicy::Kind::kPiece:
      return by_size(model, 0);
    case UnitPolicy::Kind::kClasses:
      return by_classes(model, classes, policy.classes);
    case UnitPolicy::Kind::kMinParameters:
      return by_size(model, policy.min_parameters);
    case UnitPolicy::Kind::kGroups:
      return by_hand(model, policy.groups);
  }
  return {};
}

namespace {

// Returns a group's carry out. Tensors that pass through all members still pass. A group of several
// recomputes its members' inputs, so it needs the values of everything it reads.
std::vector<CarryTensorSpec> merged_carry(const ModelSpec& model,
                                          const std::vector<UnitId>& members,
                                          bool next_is_one_unit) {
  std::vector<CarryTensorSpec> carry = model.unit(members.back()).carry_out;
  for (CarryTensorSpec& tensor : carry) {
    for (size_t i = members.size() - 1; i-- > 0 && tensor.passes;) {
      tensor.passes = model.unit(members[i]).carry_out[static_cast<size_t>(*tensor.passes)].passes;
    }
    tensor.running = tensor.running && next_is_one_unit;
  }
  return carry;
}

}  // namespace

ModelSpec merge_units(const ModelSpec& model, const std::vector<std::vector<UnitId>>& groups) {
  std::map<ParamRef, ParamRef> places;  // new reference of each owned parameter
  ModelSpec merged;
  for (size_t group = 0; group < groups.size(); ++group) {
    const std::vector<UnitId>& members = groups[group];
    UnitSpec unit;
    unit.id = UnitId(static_cast<int32_t>(merged.units.size()));
    unit.name = model.unit(members.front()).name;
    if (members.size() > 1) unit.name += ".." + model.unit(members.back()).name;
    // A group of several runs its members forward again.
    unit.backward_reads_parameters =
        members.size() > 1 || model.unit(members.front()).backward_reads_parameters;
    for (UnitId member : members) {
      const UnitSpec& from = model.unit(member);
      for (size_t i = 0; i < from.parameters.size(); ++i) {
        places[{member, static_cast<int32_t>(i)}] = {unit.id,
                                                     static_cast<int32_t>(unit.parameters.size())};
        unit.parameters.push_back(from.parameters[i]);
      }
    }
    for (UnitId member : members) {
      for (ParamRef ref : model.unit(member).tied) {
        const ParamRef place = places.at(ref);
        const bool own = place.unit == unit.id;
        const bool known = std::ranges::find(unit.tied, place) != unit.tied.end();
        if (!own && !known) unit.tied.push_back(place);
      }
    }
    unit.carry_out =
        merged_carry(model, members, group + 1 < groups.size() && groups[group + 1].size() == 1);
    merged.units.push_back(std::move(unit));
  }
  validate_model_spec(merged);
  return merged;
}

}  // namespace longshore
