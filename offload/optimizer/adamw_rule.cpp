#include "offload/optimizer/adamw_rule.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/texts.h"

namespace longshore {
namespace {

bool contains(const AdamWGroup& group, const ParamSpec& parameter) {
  return std::ranges::any_of(group.parameters, [&](const std::string& glob) {
    return glob_matches(glob, parameter.name);
  });
}

bool names_trainable(const std::string& glob, const ModelSpec& model) {
  for (const UnitSpec& unit : model.units) {
    for (const ParamSpec& parameter : unit.parameters) {
      if (!parameter.frozen && glob_matches(glob, parameter.name)) return true;
    }
  }
  return false;
}

}  // namespace

AdamWRule::AdamWRule(AdamWOptions options) : options_(std::move(options)) {}

int32_t AdamWRule::group_of(const ParamSpec& parameter) const {
  const auto found = std::ranges::find_if(
      options_.groups, [&](const AdamWGroup& group) { return contains(group, parameter); });
  const auto place = static_cast<int32_t>(found - options_.groups.begin());
  // A group with its own decay applies it to all of its parameters.
  const bool own = found != options_.groups.end() && found->weight_decay.has_value();
  const bool decays = own || options_.decay == DecayRule::kAll || parameter.is_matrix();
  return 2 * place + (decays ? 1 : 0);
}

void AdamWRule::stage(const StepUpdate& update) {
  scalars_.clear();
  for (size_t i = 0; i <= options_.groups.size(); ++i) {
    AdamWOptions options = options_;
    double lr = update.lr;
    if (i < options_.groups.size()) {
      const AdamWGroup& group = options_.groups[i];
      lr *= group.lr_ratio;
      options.weight_decay = group.weight_decay.value_or(options_.weight_decay);
    }
    for (const bool decays : {false, true}) {
      scalars_.push_back(make_adamw_scalars(options, update.update, lr, update.clip_scale, decays));
    }
  }
}

void AdamWRule::apply(int32_t group, const UpdateSlice& slice) const {
  adamw_step(slice, scalars_.at(static_cast<size_t>(group)));
}

void check_groups(const AdamWOptions& options, const ModelSpec& model) {
  std::vector<std::string> problems;
  for (size_t i = 0; i < options.groups.size(); ++i) {
    for (const std::string& glob : options.groups[i].parameters) {
      if (names_trainable(glob, model)) continue;
      problems.push_back("optimizer.groups: '" + glob + "' of group " + std::to_string(i + 1) +
                         " matches no parameter that is trained");
    }
  }
  if (!problems.empty()) throw ConfigError(std::move(problems));
}

}  // namespace longshore
