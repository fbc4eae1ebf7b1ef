#include "offload/schedule/schedule_simulation.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <tuple>

#include "base/errors.h"
#include "base/texts.h"

namespace longshore {
namespace {

constexpr int32_t kNobody = -1;

class Simulation {
 public:
  Simulation(const StepSchedule& schedule, std::span<const OpSeconds> seconds,
             const LaneThreads& threads, double cores)
      : schedule_(schedule), seconds_(seconds), threads_(threads), cores_(cores) {
    pass_.ops.resize(schedule.ops.size());
    done_.assign(schedule.ops.size(), false);
    const std::vector<size_t> tracks = tracks_of(schedule);
    for (size_t i = 0; i < tracks.size(); ++i) {
      tracks_[tracks[i]].push_back(static_cast<int32_t>(i));
    }
    running_.fill(kNobody);
    lane_last_.fill(kNobody);
    track_last_.fill(kNobody);
  }

  SimulatedPass run() {
    size_t left = schedule_.ops.size();
    while (left > 0) {
      start_all();
      left -= advance();
    }
    pass_.seconds = now_;
    return std::move(pass_);
  }

 private:
  struct Candidate {
    size_t track = 0;
    int32_t op = kNobody;
    double ready = 0.0;
    int32_t held_by = kNobody;
    // Orders the candidates for one lane; the smallest key runs first.
    std::tuple<bool, double, int32_t> key(const StepSchedule& schedule) const {
      const OpKind kind = schedule.ops[static_cast<size_t>(op)].kind;
      return {kind != OpKind::kReadParameters, ready, op};
    }
  };

  std::optional<Candidate> next_of(size_t track) const {
    if (next_[track] >= tracks_[track].size()) return std::nullopt;
    Candidate next{.track = track, .op = tracks_[track][next_[track]]};
    const int32_t before_in_track = track_last_[track];
    if (before_in_track != kNobody && !done_[static_cast<size_t>(before_in_track)]) {
      return std::nullopt;
    }
    wait_for(before_in_track, next);
    for (const int32_t before : schedule_.ops[static_cast<size_t>(next.op)].after) {
      if (!done_[static_cast<size_t>(before)]) return std::nullopt;
      wait_for(before, next);
    }
    return next;
  }

  void wait_for(int32_t other, Candidate& now) const {
    if (other == kNobody) return;
    const double end = pass_.ops[static_cast<size_t>(other)].end;
    if (std::pair(end, other) < std::pair(now.ready, now.held_by)) return;
    now.ready = end;
    now.held_by = other;
  }

  // Starts a ready operation on every lane that is free.
  void start_all() {
    std::array<std::optional<Candidate>, kLaneCount> first;
    for (size_t track = 0; track < kTrackCount; ++track) {
      const auto lane = static_cast<size_t>(lane_of_track(track));
      if (running_[lane] != kNobody) continue;
      const std::optional<Candidate> next = next_of(track);
      if (!next) continue;
      if (!first[lane] || next->key(schedule_) < first[lane]->key(schedule_)) first[lane] = next;
    }
    for (size_t lane = 0; lane < kLaneCount; ++lane) {
      if (!first[lane]) continue;
      const auto op = static_cast<size_t>(first[lane]->op);
      const int32_t last = lane_last_[lane];
      const bool lane_held = last != kNobody && pass_.ops[static_cast<size_t>(last)].end == now_ &&
                             first[lane]->ready < now_;
      pass_.ops[op] = {now_, now_, lane_held ? last : first[lane]->held_by};
      running_[lane] = first[lane]->op;
      left_[lane] = seconds_[op];
      due_[lane] = now_ + left_[lane].*part(lane);
      track_last_[first[lane]->track] = first[lane]->op;
      ++next_[first[lane]->track];
    }
  }

  // Returns the current phase of the lane's operation.
  double OpSeconds::* part(size_t lane) const {
    if (left_[lane].waits > 0.0) return &OpSeconds::waits;
    return left_[lane].moves > 0.0 ? &OpSeconds::moves : &OpSeconds::works;
  }

  // Returns the speed of each running operation, as a fraction of its speed alone.
  std::array<double, kLaneCount> rates() const {
    double wanted = 0.0, movers = 0.0;
    for (size_t lane = 0; lane < kLaneCount; ++lane) {
      if (running_[lane] == kNobody) continue;
      if (part(lane) == &OpSeconds::works) wanted += threads_[lane];
      if (part(lane) == &OpSeconds::moves) movers += 1.0;
    }
    const double share = wanted > cores_ ? cores_ / wanted : 1.0;
    std::array<double, kLaneCount> rates;
    rates.fill(1.0);
    for (size_t lane = 0; lane < kLaneCount; ++lane) {
      if (running_[lane] == kNobody) continue;
      if (part(lane) == &OpSeconds::moves) rates[lane] = 1.0 / movers;
      if (part(lane) == &OpSeconds::works && threads_[lane] > 0.0) rates[lane] = share;
    }
    return rates;
  }

  // Advances to the next end of a phase. Returns the number of operations that ended.
  size_t advance() {
    const std::array<double, kLaneCount> rate = rates();
    const auto left = [&](size_t lane) -> double& { return left_[lane].*part(lane); };
    // A phase at full speed ends at its start plus its seconds, without rounding of steps.
    const auto end_of = [&](size_t lane) {
      return rate[lane] == 1.0 ? due_[lane] : now_ + left(lane) / rate[lane];
    };
    double next = std::numeric_limits<double>::infinity();
    for (size_t lane = 0; lane < kLaneCount; ++lane) {
      if (running_[lane] != kNobody) next = std::min(next, end_of(lane));
    }
    LONGSHORE_CHECK(next < std::numeric_limits<double>::infinity())
        << "the schedule waits for itself";
    size_t ended = 0;
    std::array<bool, kLaneCount> over = {};
    for (size_t lane = 0; lane < kLaneCount; ++lane) {
      if (running_[lane] == kNobody) continue;
      const bool ends = end_of(lane) <= next;
      left(lane) = ends ? 0.0 : std::max(0.0, left(lane) - (next - now_) * rate[lane]);
      if (ends || rate[lane] != 1.0) due_[lane] = next + left(lane);
      over[lane] = left_[lane].all() == 0.0;
      if (over[lane]) ++ended;
    }
    now_ = next;
    for (size_t lane = 0; lane < kLaneCount; ++lane) {
      if (!over[lane]) continue;
      const auto op = static_cast<size_t>(running_[lane]);
      pass_.ops[op].end = now_;
      pass_.busy[lane] += now_ - pass_.ops[op].begin;
      done_[op] = true;
      lane_last_[lane] = running_[lane];
      running_[lane] = kNobody;
    }
    return ended;
  }

  const StepSchedule& schedule_;
  std::span<const OpSeconds> seconds_;
  LaneThreads threads_;
  double cores_;
  SimulatedPass pass_;
  std::vector<bool> done_;
  std::array<std::vector<int32_t>, kTrackCount> tracks_;
  std::array<size_t, kTrackCount> next_{};
  std::array<int32_t, kTrackCount> track_last_{};
  std::array<int32_t, kLaneCount> lane_last_{}, running_{};
  std::array<OpSeconds, kLaneCount> left_{};  // by lane: remaining time of the running operation
  std::array<double, kLaneCount> due_{};      // by lane: when its phase ends at full speed
  double now_ = 0.0;
};

}  // namespace

std::vector<double> all_of(std::span<const OpSeconds> seconds) {
  std::vector<double> all;
  for (const OpSeconds& one : seconds) all.push_back(one.all());
  return all;
}

SimulatedPass simulate_schedule(const StepSchedule& schedule, std::span<const OpSeconds> seconds,
                                const LaneThreads& threads, double cores) {
  LONGSHORE_CHECK(seconds.size() == schedule.ops.size()) << seconds.size() << " times";
  LONGSHORE_CHECK(cores > 0.0) << cores << " cores";
  for (size_t i = 0; i < seconds.size(); ++i) {
    LONGSHORE_CHECK(seconds[i].waits >= 0.0 && seconds[i].moves >= 0.0 && seconds[i].works >= 0.0)
        << "op " << i << " takes " << seconds[i].all() << " s";
    for (int32_t before : schedule.ops[i].after) {
      LONGSHORE_CHECK(before < static_cast<int32_t>(i)) << "op " << i << " waits for op " << before;
    }
  }
  return Simulation(schedule, seconds, threads, cores).run();
}

SimulatedPass simulate_schedule(const StepSchedule& schedule, std::span<const double> seconds) {
  std::vector<OpSeconds> parts;
  for (const double each : seconds) parts.push_back({.works = each});
  return simulate_schedule(schedule, parts);
}

std::vector<int32_t> critical_path(const SimulatedPass& pass) {
  if (pass.ops.empty()) return {};
  const auto last = std::ranges::max_element(pass.ops, {}, &SimulatedOp::end);
  std::vector<int32_t> path;
  for (auto op = static_cast<int32_t>(last - pass.ops.begin()); op >= 0;
       op = pass.ops[static_cast<size_t>(op)].held_by) {
    path.push_back(op);
  }
  std::ranges::reverse(path);
  return path;
}

// ---- The schedule as a table and as a picture ----

namespace {

using Row = std::array<std::string, 7>;

const Row kTitles = {"op", "lane", "operation", "unit", "uses", "after", "bytes"};

std::string padded(const std::string& text, size_t width, bool right) {
  const std::string spaces(width - std::min(width, text.size()), ' ');
  return right ? spaces + text : text + spaces;
}

// ---- Drawing ----

constexpr double kLeft = 70.0;
constexpr double kWidth = 1600.0;
constexpr double kRow = 34.0;
constexpr double kBar = 26.0;

// Bars of the same unit have the same colour in every lane, neighbours differ.
constexpr std::array<std::string_view, 6> kColours = {"#7fb3d5", "#f5b971", "#8fce9b",
                                                      "#c7a3d9", "#e39b9b", "#b8bf7a"};

std::string number(double value) {
  return formatted("%.1f", value);
}

std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '&') {
      out += "&amp;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string bar(const Op& op, int32_t index, const std::string& name, const SimulatedOp& times,
                double y, double scale) {
  const double x = kLeft + times.begin * scale;
  const double width = std::max(1.0, (times.end - times.begin) * scale - 1.0);
  std::string title = std::to_string(index) + " " + name;
  for (const std::string& use : uses_of(op)) title += ", " + use;
  if (!op.after.empty()) title += ", after " + joined(op.after, " ");
  const auto colour = static_cast<size_t>(op.unit.value) % kColours.size();
  std::string text = "<g><title>" + escaped(title) + "</title><rect x=\"" + number(x) + "\" y=\"" +
                     number(y) + "\" width=\"" + number(width) + "\" height=\"" + number(kBar) +
                     "\" fill=\"" + std::string(kColours[colour]) + "\"";
  // Bars of backward have a frame.
  if (op.kind == OpKind::kBackward) text += " stroke=\"#333\"";
  text += "/>";
  const std::string label = op.kind == OpKind::kCommit ? "c" : std::to_string(op.unit.value);
  if (width > 6.0 + 8.0 * static_cast<double>(label.size())) {
    text += "<text x=\"" + number(x + 3) + "\" y=\"" + number(y + 17) + "\">" + label + "</text>";
  }
  return text + "</g>\n";
}

}  // namespace

std::string print_schedule(const StepSchedule& schedule, const ModelSpec& model) {
  std::vector<Row> rows = {kTitles};
  for (size_t i = 0; i < schedule.ops.size(); ++i) {
    const Op& op = schedule.ops[i];
    rows.push_back(
        {std::to_string(i), std::string(name_of(lane_of(op.kind))), std::string(name_of(op.kind)),
         op.kind == OpKind::kCommit ? "" : model.unit(op.unit).name, joined(uses_of(op), ", "),
         joined(op.after, " "), op.bytes > 0 ? format_bytes(op.bytes) : ""});
  }
  std::array<size_t, kTitles.size()> widths{};
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const bool right = i == 0 || i + 1 == row.size();
      line += (i == 0 ? "" : "  ") + padded(row[i], widths[i], right);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string draw_schedule(const StepSchedule& schedule, const ModelSpec& model,
                          const SimulatedPass& pass) {
  LONGSHORE_CHECK(pass.ops.size() == schedule.ops.size());
  std::array<int, kLaneCount> rows{};  // by lane, from 1; 0: the lane has no operations
  int row_count = 0;
  for (size_t lane = 0; lane < kLaneCount; ++lane) {
    const bool used = std::ranges::any_of(
        schedule.ops, [&](const Op& op) { return lane_of(op.kind) == static_cast<Lane>(lane); });
    if (used) rows[lane] = ++row_count;
  }
  const double height = kRow * (row_count + 1) + 10.0;
  std::string text = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" +
                     number(kLeft + kWidth + 10.0) + "\" height=\"" + number(height) +
                     "\" font-family=\"sans-serif\" font-size=\"12\">\n"
                     "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
  const auto y_of = [&](size_t lane) { return kRow * (rows[lane] - 1) + 8.0; };
  for (size_t lane = 0; lane < kLaneCount; ++lane) {
    if (rows[lane] == 0) continue;
    text += "<text x=\"6\" y=\"" + number(y_of(lane) + 17) + "\">" +
            std::string(name_of(static_cast<Lane>(lane))) + "</text>\n";
  }
  const double scale = pass.seconds > 0.0 ? kWidth / pass.seconds : 0.0;
  for (size_t i = 0; i < schedule.ops.size(); ++i) {
    const Op& op = schedule.ops[i];
    text += bar(op, static_cast<int32_t>(i), name_of(op, model), pass.ops[i],
                y_of(static_cast<size_t>(lane_of(op.kind))), scale);
  }
  return text + "<text x=\"" + number(kLeft) + "\" y=\"" + number(height - 12.0) +
         "\">time, from left to right; a number is a unit, a frame is backward</text></svg>\n";
}

}  // namespace longshore
