// The schedule of the learning rate that a file of Axolotl, LLaMA-Factory or TRL asks for.
#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/texts.h"
#include "config/field_table.h"
#include "config/schedule_table.h"
#include "config/toml_document.h"
#include "trainer/setup/other_findings.h"

namespace longshore {
namespace {

class ScheduleReader {
 public:
  ScheduleReader(const Json& file, const OtherScheduleDefaults& defaults)
      : file_(file), defaults_(defaults) {}

  OtherFindings read() {
    std::string name = in_.text("lr_scheduler");
    if (name.empty()) name = in_.text("lr_scheduler_type");
    if (name.empty()) name = defaults_.name;
    OtherFindings options_found;
    const Json* const given = in_.take("lr_scheduler_kwargs");
    const Json table = given != nullptr && given->is_object() ? *given : Json::object();
    OtherReader options(table, options_found);
    if (given != nullptr && !given->is_object() && *given != "") {
      in_.left("lr_scheduler_kwargs", "expected a table of numbers", "schedule.min_lr_ratio");
    }
    in_.set("schedule.min_lr_ratio", toml_real(0.0));
    const auto schedules = other_schedules();
    const auto found = std::ranges::find(schedules, std::string_view(name), &OtherSchedule::name);
    if (found == schedules.end()) {
      const auto named = [](const OtherSchedule& one) { return std::string(one.name); };
      in_.refuse("lr_scheduler = " + printable(name, 40),
                 "expected one of " + joined(schedules, ", ", named), "schedule.name");
    } else {
      in_.set("schedule.name", quote_toml(lr_schedule_of(found->kind).name));
      for (const OtherScheduleOption& option : found->options) {
        if (option.name != nullptr) read_option(option, options);
      }
    }
    for (const OtherFinding& wrong : options_found.refused) {
      in_.refuse("lr_scheduler_kwargs." + wrong.key, wrong.why);
    }
    for (const auto& [key, value] : table.items()) {
      if (value.is_null() || std::ranges::count(options_found.read, key) > 0) continue;
      in_.left("lr_scheduler_kwargs." + printable(key, 40),
               "the run file has no such setting of this schedule");
    }
    read_warmup(name);
    return std::move(found_);
  }

 private:
  void read_option(const OtherScheduleOption& option, OtherReader& options) {
    if (option.usual_text != nullptr) return read_choice(option, options);
    const std::optional<double> given = options.number(option.name);
    double value = given.value_or(option.usual);
    if (!given && value == 0.0) return;
    if (option.is_rate) value = defaults_.lr > 0.0 ? value / defaults_.lr : 0.0;
    if (option.whole && value != std::floor(value)) {
      return in_.refuse(std::string("lr_scheduler_kwargs.") + option.name, "expected an integer",
                        option.key);
    }
    in_.set(option.key, option.whole ? formatted("%.0f", value) : toml_real(value));
  }

  void read_choice(const OtherScheduleOption& option, OtherReader& options) {
    const std::vector<std::string>& choices = key_named(option.key).choices;
    const std::string given = options.text(option.name);
    const std::string value = options.has(option.name) ? given : option.usual_text;
    if (std::ranges::find(choices, value) == choices.end()) {
      return in_.refuse(std::string("lr_scheduler_kwargs.") + option.name,
                        "expected one of " + joined(choices, ", "), option.key);
    }
    in_.set(option.key, quote_toml(value));
  }

  void read_warmup(const std::string& schedule) {
    double steps = in_.number("warmup_steps").value_or(0.0);
    double ratio = in_.number("warmup_ratio").value_or(0.0);
    const bool given = in_.has("warmup_steps") || in_.has("warmup_ratio");
    if (steps > 0.0 && steps < 1.0) ratio = std::exchange(steps, 0.0);
    if (schedule == "constant") {  // it has no warm-up
      for (const char* name : {"warmup_steps", "warmup_ratio"}) {
        if (in_.has(name)) in_.needless(name, "the schedule has no warm-up");
      }
      return;
    }
    if (steps > 0.0) {
      in_.set("schedule.warmup_steps", formatted("%.0f", steps));
    } else if (ratio > 0.0) {
      in_.set("schedule.warmup_ratio", toml_real(ratio));
    } else if (!given && defaults_.trainer == "Axolotl" && defaults_.steps > 0.0) {
      const double part = std::min(std::floor(0.03 * defaults_.steps), 100.0);
      in_.set("schedule.warmup_steps", formatted("%.0f", part == 1.0 ? 2.0 : part));
    } else if (!given && defaults_.trainer == "Axolotl") {
      in_.set("schedule.warmup_ratio", "0.03");
      in_.left("warmup_steps",
               "without it Axolotl warms up for 3% of the steps, at most 100; the run file has "
               "schedule.warmup_ratio = 0.03",
               "schedule.warmup_ratio");
    }
  }

  const Json& file_;
  const OtherScheduleDefaults& defaults_;
  OtherFindings found_;
  OtherReader in_{file_, found_};
};

}  // namespace

OtherFindings read_other_schedule(const Json& file, const OtherScheduleDefaults& defaults) {
  return ScheduleReader(file, defaults).read();
}

}  // namespace longshore
