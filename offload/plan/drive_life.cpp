#include "offload/plan/drive_life.h"

#include <nlohmann/json.hpp>

#include "base/texts.h"

namespace longshore {
namespace {

constexpr double kSecondsOfADay = 86400.0;
constexpr double kSteps = 1000.0;

// The wear of one drive; members without enough information are empty.
struct DriveLife {
  double step_bytes = 0.0;
  std::optional<double> run_bytes;
  std::optional<double> run_share;  // of the rated writes
  std::optional<double> days;       // of continuous running, from new to the rating
};

DriveLife life_of(const TierPlan& plan, size_t drive) {
  DriveLife life;
  life.step_bytes = static_cast<double>(plan.drives.step_writes[drive]);
  if (plan.steps > 0) life.run_bytes = life.step_bytes * static_cast<double>(plan.steps);
  const auto rated = static_cast<double>(plan.drives.tier.rated_writes.value_or(0));
  if (rated <= 0.0 || life.step_bytes <= 0.0) return life;
  if (life.run_bytes) life.run_share = *life.run_bytes / rated;
  if (plan.drives.tier.seconds_per_step) {
    life.days = rated / life.step_bytes * *plan.drives.tier.seconds_per_step / kSecondsOfADay;
  }
  return life;
}

std::string number(double value, const char* unit) {
  return formatted("%.3g%s", value, unit);
}

std::string drive_line(const TierPlan& plan, size_t drive) {
  const DriveLife life = life_of(plan, drive);
  std::string text = "  " + plan.drives.tier.directories[drive] + ": 1000 steps write " +
                     number(life.step_bytes * kSteps * 1e-12, " TB");
  if (life.run_bytes) text += ", the run " + number(*life.run_bytes * 1e-12, " TB");
  if (life.run_share) {
    text += " = " + number(*life.run_share * 100.0, " %") + " of the rated " +
            number(static_cast<double>(*plan.drives.tier.rated_writes) * 1e-12, " TB");
  }
  if (life.days) {
    text += "; at " + number(*plan.drives.tier.seconds_per_step, " s") +
            " a step the rating lasts " + number(*life.days, " days");
  }
  if (drive < plan.drives.tier.wear.size() && plan.drives.tier.wear[drive]) {
    const DriveWear& wear = *plan.drives.tier.wear[drive];
    text += "; the drive reports that " + number(static_cast<double>(wear.written) * 1e-12, " TB") +
            " were written and " + std::to_string(wear.percent_used) + " % of its life is used";
  }
  return text + "\n";
}

template <typename T>
nlohmann::ordered_json value_or_null(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

}  // namespace

std::string drive_life_text(const TierPlan& plan) {
  std::string text;
  for (size_t drive = 0; drive < plan.drives.step_writes.size(); ++drive) {
    text += drive_line(plan, drive);
  }
  if (!text.empty() && !plan.drives.tier.rated_writes) {
    text +=
        "  set offload.nvme_tbw, the rated endurance of the drives, to see the share of their "
        "life\n";
  }
  return text;
}

nlohmann::ordered_json drive_life_json(const TierPlan& plan) {
  auto drives = nlohmann::ordered_json::array();
  for (size_t drive = 0; drive < plan.drives.step_writes.size(); ++drive) {
    const DriveLife life = life_of(plan, drive);
    nlohmann::ordered_json json = {
        {"step_written_bytes", plan.drives.step_writes[drive]},
        {"run_written_bytes", value_or_null(life.run_bytes)},
        {"rated_bytes", value_or_null(plan.drives.tier.rated_writes)},
        {"run_share_of_rating", value_or_null(life.run_share)},
        {"days_to_rating", value_or_null(life.days)},
        {"seconds_per_step", value_or_null(plan.drives.tier.seconds_per_step)},
        {"written_so_far_bytes", nullptr},
        {"percent_used", nullptr}};
    if (drive < plan.drives.tier.wear.size() && plan.drives.tier.wear[drive]) {
      json["written_so_far_bytes"] = plan.drives.tier.wear[drive]->written;
      json["percent_used"] = plan.drives.tier.wear[drive]->percent_used;
    }
    drives.push_back(std::move(json));
  }
  return drives;
}

}  // namespace longshore
