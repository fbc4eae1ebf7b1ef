#include "trainer/metrics/trace_file.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/json.h"
#include "base/number_formats.h"
#include "base/texts.h"
#include "offload/schedule/schedule_simulation.h"

namespace longshore {
namespace {

Json row_name(Rank rank, size_t track) {
  return {{"ph", "M"},
          {"name", "thread_name"},
          {"pid", rank.value},
          {"tid", track},
          {"args", {{"name", name_of_track(track)}}}};
}

std::pair<double, double> bounds_of(std::span<const OpTime> times) {
  if (times.empty()) return {0.0, 0.0};
  std::pair<double, double> bounds = {times.front().begin, times.front().end};
  for (const OpTime& time : times) {
    bounds.first = std::min(bounds.first, time.begin);
    bounds.second = std::max(bounds.second, time.end);
  }
  return bounds;
}

// Returns the measured times in the form of a simulated pass.
SimulatedPass measured_pass(const StepSchedule& schedule, std::span<const OpTime> times) {
  SimulatedPass pass;
  const auto [begin, end] = bounds_of(times);
  pass.seconds = end - begin;
  for (size_t i = 0; i < times.size(); ++i) {
    pass.ops.push_back({.begin = times[i].begin - begin, .end = times[i].end - begin});
    pass.busy[static_cast<size_t>(lane_of(schedule.ops[i].kind))] += times[i].end - times[i].begin;
  }
  return pass;
}

}  // namespace

TraceFile::TraceFile(const std::string& path, Rank rank)
    : fd_(create_file(rank.value == 0 ? path : path + ".rank" + std::to_string(rank.value))),
      rank_(rank),
      picture_(path.ends_with(".svg")) {
  if (picture_) return;
  write("[");
  for (size_t track = 0; track < kTrackCount; ++track) {
    write((track == 0 ? "\n" : ",\n") + row_name(rank, track).dump());
  }
}

void TraceFile::finish() {
  if (finished_) return;
  finished_ = true;
  write(picture_ ? drawn_ : "\n]\n");
  if (!failure_.empty()) throw IoError(failure_);
}

TraceFile::~TraceFile() {
  try {
    finish();
  } catch (...) {
    // Trace readers accept a file without its end.
  }
}

void TraceFile::write(const std::string& text) {
  if (!failure_.empty()) return;
  try {
    write_all(fd_, text);
  } catch (const IoError& error) {
    failure_ = error.what();
  }
}

void TraceFile::add(const StepSchedule& schedule, std::span<const OpTime> times,
                    const ModelSpec& model, Step step) {
  add_to_ledger(schedule, times);
  if (picture_) {
    const bool trains = std::ranges::any_of(
        schedule.ops, [](const Op& op) { return op.kind == OpKind::kBackward; });
    if (trains) drawn_ = draw_schedule(schedule, model, measured_pass(schedule, times));
    return;
  }
  const std::vector<size_t> tracks = tracks_of(schedule);
  std::string lines;
  for (size_t i = 0; i < times.size(); ++i) {
    const Op& op = schedule.ops[i];
    const double seconds = times[i].end - times[i].begin;
    Json args = {{"step", step.value}};
    if (op.kind != OpKind::kCommit) args["unit"] = model.unit(op.unit).name;
    if (op.bytes > 0) {
      args["bytes"] = op.bytes;
      if (seconds > 0.0) args["GB/s"] = static_cast<double>(op.bytes) / seconds * 1e-9;
    }
    if (const auto slot = op.find<DeviceSlot>()) args["slot"] = slot->value;
    const Json box = {{"ph", "X"},
                      {"name", name_of(op, model)},
                      {"cat", name_of(op.kind)},
                      {"pid", rank_.value},
                      {"tid", tracks[i]},
                      {"ts", times[i].begin * 1e6},
                      {"dur", seconds * 1e6},
                      {"args", args}};
    lines += ",\n" + box.dump();
  }
  write(lines);
}

void TraceFile::add_to_ledger(const StepSchedule& schedule, std::span<const OpTime> times) {
  const auto [begin, end] = bounds_of(times);
  ledger_ += account(schedule, times, begin);
  seconds_ += end - begin;
}

std::string TraceFile::ledger_text() const {
  std::string text = "lane       busy s  share      bytes     GB/s  compute waited s\n";
  for (size_t i = 0; i < kLaneCount; ++i) {
    const LaneLedger::Lane& lane = ledger_.lanes[i];
    const double rate =
        lane.busy_seconds > 0.0 ? static_cast<double>(lane.bytes) / lane.busy_seconds * 1e-9 : 0.0;
    text += formatted("%-8s %8.3f  %4.0f%%  %9s  %7.2f  %16.3f\n",
                      std::string(name_of(static_cast<Lane>(i))).c_str(), lane.busy_seconds,
                      seconds_ > 0.0 ? lane.busy_seconds / seconds_ * 100.0 : 0.0,
                      format_bytes(lane.bytes).c_str(), rate, lane.stall_seconds);
  }
  return text;
}

}  // namespace longshore
