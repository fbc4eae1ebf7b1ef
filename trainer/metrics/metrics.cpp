#include "trainer/metrics/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <filesystem>
#include <utility>

#include "base/errors.h"
#include "base/file.h"
#include "base/texts.h"
#include "trainer/directory/metrics_reader.h"
#include "trainer/metrics/metric_table.h"

namespace longshore {
namespace {

UniqueFd open_for_appending(const std::string& path) {
  return open_own_file(path, O_WRONLY | O_CREAT | O_APPEND);
}

void cut_file(const UniqueFd& fd, Bytes bytes) {
  if (::ftruncate(fd.get(), bytes) != 0) throw IoError("cut", fd.path(), errno);
  sync_file(fd);
}

}  // namespace

std::string format_loss(double value) {
  constexpr double kSmall = 1e-3;
  const bool small = value != 0.0 && std::abs(value) < kSmall;
  return formatted(small ? "%.3g" : "%.4f", value);
}

template <typename Record>
Json to_json(const Record& record, double time) {
  const MetricKind<Record>& kind = metric_kind<Record>();
  Json object = Json::object({{"kind", kind.name}});
  if constexpr (requires { record.step; }) object["step"] = record.step.value;
  object["time"] = time;
  for (const MetricRow<Record>& row : kind.rows) {
    if (std::optional<Json> value = row.value(record)) object[row.key] = std::move(*value);
  }
  return object;
}
template Json to_json(const StartRecord& record, double time);
template Json to_json(const StepRecord& record, double time);
template Json to_json(const EvalRecord& record, double time);
template Json to_json(const CheckpointRecord& record, double time);
template Json to_json(const CommitRecord& record, double time);
template Json to_json(const EventRecord& record, double time);
template Json to_json(const EndRecord& record, double time);

template <typename Record>
std::vector<Scalar> scalars_of(const Record& record) {
  std::vector<Scalar> scalars;
  for (const MetricRow<Record>& row : metric_kind<Record>().rows) {
    if (*row.tag == '\0') continue;
    const std::optional<Json> value = row.value(record);
    if (!value) continue;
    if (value->is_number()) scalars.push_back({row.tag, value->template get<double>()});
    if (!value->is_object()) continue;
    for (const auto& [name, number] : value->items()) {
      if (!number.is_number()) continue;
      scalars.push_back({std::string(row.tag) + "/" + name, number.template get<double>()});
    }
  }
  return scalars;
}
template std::vector<Scalar> scalars_of(const StepRecord& record);
template std::vector<Scalar> scalars_of(const EvalRecord& record);

Bytes metrics_cut_offset(const std::string& path, Step step) {
  Bytes cut = 0;
  read_metrics(path, {"step", "eval", "checkpoint", "commit"}, [&](const MetricsLine& line) {
    if (!line.step) return true;
    if (*line.step > step.value) return false;
    cut = line.end;
    return true;
  });
  return cut;
}

MetricsFile MetricsFile::begin(const std::string& path) {
  UniqueFd fd = open_for_appending(path);
  cut_file(fd, 0);
  return {std::move(fd), 0};
}

MetricsFile MetricsFile::resume(const std::string& path, Step step) {
  UniqueFd fd = open_for_appending(path);
  const Bytes kept = metrics_cut_offset(path, step);
  cut_file(fd, kept);
  return {std::move(fd), kept};
}

std::string MetricsFile::set_aside(const std::string& path, Step step) {
  std::error_code missing;
  if (!std::filesystem::exists(std::filesystem::symlink_status(path, missing))) return "";
  const UniqueFd file = open_own_file(path, O_RDONLY);
  if (file_bytes(file) <= (step.value == 0 ? 0 : metrics_cut_offset(path, step))) return "";
  const std::string aside = path + ".abandoned";
  std::string to = aside;
  for (int i = 2; std::filesystem::exists(std::filesystem::symlink_status(to)); ++i) {
    to = aside + "-" + std::to_string(i);
  }
  std::error_code error;
  std::filesystem::copy_file(path, to, error);
  if (error) throw IoError("copy " + path + " to", to, error.value());
  return to;
}

void MetricsFile::write_line(const Json& object) {
  waiting_ += json_text(object) + "\n";
  write_waiting();
}

void MetricsFile::write_waiting() {
  if (waiting_.empty()) return;
  if (!is_named(fd_)) {
    failure_ = fd_.path() + ": was removed or replaced during the run";
    return;
  }
  try {
    write_all(fd_, waiting_);
    bytes_ += static_cast<Bytes>(waiting_.size());
    waiting_.clear();
    failure_.clear();
  } catch (const IoError& error) {
    if (failure_.empty()) failure_ = error.what();
    // A partly written line is cut off so that the next line starts at the beginning of a line.
    if (::ftruncate(fd_.get(), bytes_) != 0) failure_ += "; an incomplete line remains";
  }
}

void MetricsFile::sync() {
  write_waiting();
  if (events_) events_->write_waiting();
  if (::fsync(fd_.get()) != 0 && failure_.empty()) {
    failure_ = IoError("fsync", fd_.path(), errno).what();
  }
}

}  // namespace longshore
