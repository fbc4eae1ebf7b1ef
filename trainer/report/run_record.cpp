#include "trainer/report/run_record.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <limits>

#include "base/errors.h"
#include "base/file.h"
#include "base/measurement.h"
#include "base/processor.h"
#include "base/texts.h"
#include "trainer/directory/metrics_reader.h"
#include "trainer/metrics/metric_table.h"
#include "trainer/metrics/metrics.h"
#include "trainer/report/page.h"

namespace longshore {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr Bytes kMaxFileBytes = 64 * kMiB;
constexpr JsonLimits kFileLimits{.max_bytes = kMaxFileBytes, .max_depth = 32};
constexpr size_t kMostEvents = 1000;
std::string read_text(const std::string& path) {
  try {
    return read_own_file(path, kMaxFileBytes);
  } catch (const Error&) {
    return "";
  }
}

Json read_object(const std::string& path) {
  try {
    Json value = parse_json(read_own_file(path, kMaxFileBytes), kFileLimits, path);
    return value.is_object() ? value : Json();
  } catch (const Error&) {
    return {};
  }
}

// Returns whether the process that run.json names ran on this machine and no longer exists.
bool is_gone(const Json& status) {
  const std::string host = host_name();
  const auto pid = status.find("pid");
  if (host.empty() || member_text(status, "host") != host || pid == status.end()) return false;
  if (!pid->is_number_integer() || pid->get<int64_t>() <= 0) return false;
  return ::kill(static_cast<pid_t>(pid->get<int64_t>()), 0) != 0 && errno == ESRCH;
}

void read_status(const std::string& path, RunRecord& record) {
  const Json status = read_object(path);
  record.status = member_text(status, "status");
  record.message = member_text(status, "message");
  if (record.status.empty()) record.status = "unknown";
  if (record.status == "running" && is_gone(status)) record.status = "killed";
}

// Returns NaN if the value is no number or above 1e30, which no measurement reaches.
double number_or_none(const Json& value) {
  constexpr double kMost = 1e30;
  const double number = value.is_number() ? value.get<double>() : kNone;
  return std::abs(number) <= kMost ? number : kNone;
}

// Adds the line's numbers, and those of its objects, to the series of their keys behind `prefix`.
template <typename Rows>
void take_numbers(const MetricsLine& line, const Rows& rows, const std::string& prefix,
                  RunRecord& record) {
  const auto step = static_cast<double>(*line.step);
  for (const MetricField& field : rows) {
    const auto found = line.object.find(field.key);
    if (found == line.object.end()) continue;
    const std::string key = prefix + field.key;
    if (field.type == MetricType::kSecondsByName || field.type == MetricType::kBytesByName ||
        field.type == MetricType::kRealByName) {
      if (!found->is_object()) continue;
      for (const auto& [name, value] : found->items()) {
        record.series[key + "/" + name].push_back({step, number_or_none(value)});
      }
    } else if (field.type == MetricType::kReal || field.type == MetricType::kSeconds ||
               field.type == MetricType::kWhole) {
      record.series[key].push_back({step, number_or_none(*found)});
    }
  }
}

void take_step(const MetricsLine& line, RunRecord& record) {
  take_numbers(line, metric_kind<StepRecord>().rows, "", record);
  const auto waited = line.object.find("waited_seconds");
  if (waited != line.object.end() && waited->is_array()) {
    for (size_t rank = 0; rank < waited->size(); ++rank) {
      const double seconds = number_or_none((*waited)[rank]);
      if (std::isfinite(seconds)) record.waited_by_rank[std::to_string(rank)] += seconds;
    }
  }
  const auto slowest = line.object.find("slowest_rank");
  if (slowest == line.object.end() || !slowest->is_object()) return;
  const auto rank = slowest->find("rank");
  if (rank == slowest->end() || !rank->is_number_integer()) return;
  ++record.slowest["rank " + std::to_string(rank->get<int64_t>()) + " " +
                   member_text(*slowest, "resource")];
}

void take_line(const MetricsLine& line, RunRecord& record) {
  const double time = line.number("time").value_or(kNone);
  if (std::isfinite(time)) {
    if (std::isnan(record.begun)) record.begun = time;
    record.newest = time;
  }
  if (line.kind == "start") {
    ++record.starts;
  } else if (line.kind == "event") {
    const std::string code = member_text(line.object, "code");
    const std::string text = member_text(line.object, "text");
    if (code == "sample") {
      record.samples.push_back({record.last_step(), text});
    } else if (record.events.size() < kMostEvents) {
      record.events.push_back({member_text(line.object, "level"), code, text});
    }
  } else if (line.step && line.kind == "step") {
    take_step(line, record);
  } else if (line.step && line.kind == "eval") {
    take_numbers(line, metric_kind<EvalRecord>().rows, "eval/", record);
  }
}

std::vector<double> values_of(const std::vector<ChartPoint>& points) {
  std::vector<double> values;
  for (const ChartPoint& point : points) {
    if (std::isfinite(point.y)) values.push_back(point.y);
  }
  return values;
}

}  // namespace

const std::vector<ChartPoint>& RunRecord::of(const std::string& key) const {
  static const std::vector<ChartPoint> kNothing;
  const auto found = series.find(key);
  return found == series.end() ? kNothing : found->second;
}

int64_t RunRecord::last_step() const {
  const std::vector<ChartPoint>& losses = of("loss");
  return losses.empty() ? 0 : static_cast<int64_t>(losses.back().x);
}

RunRecord read_run_record(const std::string& directory) {
  const std::string metrics = directory + "/metrics.jsonl";
  std::error_code ignored;
  if (!std::filesystem::exists(metrics, ignored)) {
    throw DataError(std::filesystem::absolute(metrics).string() +
                    ": no such file; give the directory of a run that has started (run.dir)");
  }
  RunRecord record{.directory = directory};
  read_status(directory + "/run.json", record);
  read_metrics(metrics, {"start", "step", "eval", "event", "end"},
               [&record](const MetricsLine& line) {
                 take_line(line, record);
                 return true;
               });
  record.environment = read_object(directory + "/env.json");
  record.data = read_object(directory + "/data.json");
  record.plan = read_object(directory + "/plan.json");
  record.config = read_text(directory + "/config.toml");
  record.command = read_text(directory + "/command.txt");
  record.plan_text = read_text(directory + "/plan.txt");
  return record;
}

double lowest_of(const std::vector<ChartPoint>& points) {
  const std::vector<double> values = values_of(points);
  return values.empty() ? kNone : *std::ranges::min_element(values);
}

double median_of(const std::vector<ChartPoint>& points) {
  const std::vector<double> values = values_of(points);
  return values.empty() ? kNone : median_of(values);
}

double last_of(const std::vector<ChartPoint>& points) {
  const std::vector<double> values = values_of(points);
  return values.empty() ? kNone : values.back();
}

double sum_of(const std::vector<ChartPoint>& points) {
  double sum = 0.0;
  for (const double value : values_of(points)) sum += value;
  return sum;
}

RecordedPart part_of_files(const Json& set) {
  RecordedPart found;
  const auto part = set.find("part");
  if (part == set.end() || !part->is_object()) return found;
  try {
    found.held_out = part->at("held_out").get<bool>();
    const auto count = [&part](const char* key) {
      return format_count(part->at(key).get<int64_t>());
    };
    const std::string split = "eval.split = " + part->at("eval_split").dump();
    found.words = found.held_out
                      ? "rows of these files that were held out by " + split + " and never trained"
                      : "without the rows held out by " + split;
    found.words += ": " + count("documents") + " documents, " + count("tokens") + " tokens, " +
                   count("trained_tokens") + " trained tokens";
  } catch (const Json::exception&) {
    return {};
  }
  return found;
}

}  // namespace longshore
