#include "trainer/report/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <fstream>
#include <optional>

#include "base/errors.h"

namespace longshore {
namespace {

Json head(std::string_view kind, double time) {
  Json object = Json::object();
  object["kind"] = kind;
  object["time"] = time;
  return object;
}

Json head(std::string_view kind, Step step, double time) {
  Json object = Json::object();
  object["kind"] = kind;
  object["step"] = step.value;
  object["time"] = time;
  return object;
}

template <typename Value>
Json named_values(const std::vector<std::pair<std::string, Value>>& values) {
  Json object = Json::object();
  for (const auto& [name, value] : values) object[name] = value;
  return object;
}

UniqueFd open_for_appending(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644), path);
  if (!fd.valid()) throw IoError("open", path, errno);
  return fd;
}

void cut_file(const UniqueFd& fd, Bytes bytes) {
  if (::ftruncate(fd.get(), bytes) != 0) throw IoError("cut", fd.path(), errno);
  sync_file(fd);
}

// The step that a line belongs to; nullopt for a line without one (start, event, end) or a torn
// one.
std::optional<int64_t> step_of_line(const std::string& line) {
  const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return std::nullopt;
  const auto kind = object.find("kind");
  const auto step = object.find("step");
  if (kind == object.end() || step == object.end()) return std::nullopt;
  if (*kind != "step" && *kind != "eval" && *kind != "checkpoint" && *kind != "commit")
    return std::nullopt;
  if (!step->is_number_integer()) return std::nullopt;
  return step->get<int64_t>();
}

}  // namespace

Json to_json(const StartRecord& record, double time) {
  Json object = head("start", time);
  object["plan"] = record.plan;
  object["config_hash"] = record.config_hash;
  object["ranks"] = record.ranks;
  object["resumed_from"] = record.resumed_from.value;
  return object;
}

Json to_json(const StepRecord& record, double time) {
  Json object = head("step", record.step, time);
  object["loss"] = record.loss;
  object["grad_norm"] = record.grad_norm;
  object["clip_scale"] = record.clip_scale;
  object["lr"] = record.lr;
  object["tokens"] = record.tokens;
  object["trained_tokens"] = record.trained_tokens;
  object["sequences"] = record.sequences;
  object["epoch"] = record.epoch;
  object["seconds"] = record.seconds;
  object["tokens_per_second"] = record.tokens_per_second;
  if (!record.stall_seconds.empty()) object["stall_seconds"] = named_values(record.stall_seconds);
  if (!record.bytes.empty()) object["bytes"] = named_values(record.bytes);
  if (record.times.size() > 1) {
    const SlowestRank slowest = slowest_of(record.times);
    object["slowest_rank"] = {
        {"rank", slowest.rank.value}, {"resource", slowest.resource}, {"seconds", slowest.seconds}};
    object["waited_seconds"] = Json::array();
    for (const RankTimes& times : record.times) object["waited_seconds"].push_back(times.waited);
  }
  object["memory_bytes"] = {{"device_peak", record.memory.device_peak},
                            {"device_plan", record.memory.device_plan},
                            {"host_pinned", record.memory.host_pinned},
                            {"host_rss", record.memory.host_rss}};
  object["skipped"] = record.skipped;
  object["skipped_total"] = record.skipped_total;
  return object;
}

Json to_json(const EvalRecord& record, double time) {
  Json object = head("eval", record.step, time);
  object["loss"] = record.loss;
  object["perplexity"] = record.perplexity;
  object["tokens"] = record.tokens;
  object["seconds"] = record.seconds;
  return object;
}

Json to_json(const CheckpointRecord& record, double time) {
  Json object = head("checkpoint", record.step, time);
  object["path"] = record.path;
  object["bytes"] = record.bytes;
  object["seconds"] = record.seconds;
  return object;
}

Json to_json(const CommitRecord& record, double time) {
  Json object = head("commit", record.step, time);
  object["version"] = record.version;
  object["seconds"] = record.seconds;
  return object;
}

Json to_json(const EventRecord& record, double time) {
  Json object = head("event", time);
  object["level"] = record.level;
  object["code"] = record.code;
  object["rank"] = record.rank;
  object["text"] = record.text;
  return object;
}

Json to_json(const EndRecord& record, double time) {
  Json object = head("end", time);
  object["status"] = record.status;
  object["exit_code"] = record.exit_code;
  object["steps"] = record.steps;
  return object;
}

Bytes metrics_cut_offset(const std::string& path, Step step) {
  std::ifstream file(path, std::ios::binary);
  std::string line;
  Bytes offset = 0;
  Bytes cut = 0;
  while (std::getline(file, line) && !file.eof()) {
    offset += static_cast<Bytes>(line.size()) + 1;
    const std::optional<int64_t> line_step = step_of_line(line);
    if (!line_step) continue;
    if (*line_step > step.value) break;
    cut = offset;
  }
  return cut;
}

MetricsFile MetricsFile::begin(const std::string& path) {
  UniqueFd fd = open_for_appending(path);
  cut_file(fd, 0);
  return MetricsFile(std::move(fd));
}

MetricsFile MetricsFile::resume(const std::string& path, Step step) {
  UniqueFd fd = open_for_appending(path);
  cut_file(fd, metrics_cut_offset(path, step));
  return MetricsFile(std::move(fd));
}

double MetricsFile::now_seconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

void MetricsFile::write_line(const Json& object) {
  // Text of unknown origin (a path, an error's text) must not make the line unprintable.
  const std::string line =
      object.dump(-1, ' ', false, nlohmann::detail::error_handler_t::replace) + "\n";
  write_all(fd_, line);
}

void MetricsFile::sync() const {
  sync_file(fd_);
}

}  // namespace longshore
