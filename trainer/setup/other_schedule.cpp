// The schedule of the learning rate that a file of Axolotl, LLaMA-Factory or TRL asks for.
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/texts.h"
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
    double least = 0.0;
    std::string ours = name;
    if (name == "constant_with_warmup") ours = "constant";
    if (name == "cosine_with_min_lr") {
      ours = "cosine";
      const double lowest = options.number("min_lr").value_or(0.0);
      least =
          options.number("min_lr_rate").value_or(defaults_.lr > 0.0 ? lowest / defaults_.lr : 0.0);
    }
    if (name == "warmup_stable_decay") {
      ours = "wsd";
      in_.set("schedule.decay_steps",
              formatted("%.0f", options.number("num_decay_steps").value_or(0.0)));
      least = options.number("min_lr_ratio").value_or(0.0);
    }
    if (ours != "constant" && ours != "cosine" && ours != "linear" && ours != "wsd") {
      in_.refuse("lr_scheduler = " + printable(name, 40),
                 "the run file has constant, linear, cosine and wsd (schedule.name)",
                 "schedule.name");
      ours = "constant";
    }
    for (const OtherFinding& wrong : options_found.refused) {
      in_.refuse("lr_scheduler_kwargs." + wrong.key, wrong.why);
    }
    for (const auto& [key, value] : table.items()) {
      if (value.is_null() || std::ranges::count(options_found.read, key) > 0) continue;
      in_.left("lr_scheduler_kwargs." + printable(key, 40),
               "the run file has no such setting of this schedule");
    }
    in_.set("schedule.name", quote_toml(ours));
    in_.set("schedule.min_lr_ratio", toml_real(least));
    read_warmup(name);
    return std::move(found_);
  }

 private:
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
