// Functions that make model specs for tests. Pure functions.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "shard/unit_spec.h"

namespace longshore::fakes {

inline ParamSpec make_parameter(std::string name, std::vector<int64_t> shape, bool frozen = false) {
  ParamSpec parameter;
  parameter.name = std::move(name);
  parameter.shape = std::move(shape);
  parameter.frozen = frozen;
  return parameter;
}

// The elements of the carry out of every unit but the last.
inline constexpr int64_t kHidden = 64;
inline constexpr int64_t kVocabulary = 257;

// Makes an embedding, `blocks` blocks of three parameters and a head, 64 wide. With `tied` the head
// uses the embedding's matrix. Sizes are odd, so every segment is padded.
inline ModelSpec make_small_model(int blocks, bool tied) {
  ModelSpec model;
  const auto add = [&](const std::string& name, std::vector<ParamSpec> parameters) {
    UnitSpec unit;
    unit.id = UnitId(static_cast<int32_t>(model.units.size()));
    unit.name = name;
    for (ParamSpec& parameter : parameters) {
      parameter.name = name + "." + parameter.name;
      unit.parameters.push_back(std::move(parameter));
    }
    unit.carry_out = {{kHidden}};
    model.units.push_back(std::move(unit));
  };
  add("embedding", {make_parameter("weight", {kVocabulary, kHidden})});
  for (int i = 0; i < blocks; ++i) {
    add("block." + std::to_string(i),
        {make_parameter("norm", {kHidden}), make_parameter("up", {173, kHidden}),
         make_parameter("down", {kHidden, 173})});
  }
  std::vector<ParamSpec> head = {make_parameter("norm", {kHidden})};
  if (!tied) head.push_back(make_parameter("weight", {kVocabulary, kHidden}));
  add("head", head);
  if (tied) model.units.back().tied = {{UnitId(0), 0}};
  model.units.back().carry_out.clear();
  validate_model_spec(model);
  return model;
}

}  // namespace longshore::fakes
