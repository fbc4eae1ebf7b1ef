#include "offload/schedule/schedule_text.h"

#include <algorithm>
#include <array>

#include "base/errors.h"
#include "base/texts.h"

namespace longshore {
namespace {

using Row = std::array<std::string, 7>;

const Row kTitles = {"op", "lane", "operation", "unit", "uses", "after", "bytes"};

// Lists the slots and buffers of the operation, such as "slot 1, gradient 0".
std::string uses_of(const Op& op) {
  std::string text;
  const auto add = [&text](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  for (const Placed& placed : op.slots) add("slot " + std::to_string(placed.slot.value));
  if (op.gradient) add("gradient " + std::to_string(op.gradient->value));
  if (op.host_slot) add("host slot " + std::to_string(op.host_slot->value));
  if (op.input) add("input " + std::to_string(op.input->value));
  if (op.output) add("output " + std::to_string(op.output->value));
  if (op.state) add("state " + std::to_string(op.state->value));
  if (op.parameters) add("parameters " + std::to_string(op.parameters->value));
  if (op.staging) add("staging " + std::to_string(op.staging->value));
  return text;
}

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
  if (const std::string uses = uses_of(op); !uses.empty()) title += ", " + uses;
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
    rows.push_back({std::to_string(i), std::string(name_of(lane_of(op.kind))),
                    std::string(name_of(op.kind)),
                    op.kind == OpKind::kCommit ? "" : model.unit(op.unit).name, uses_of(op),
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
