#include "trainer/report/metrics.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>

#include "base/errors.h"
#include "base/own_file.h"
#include "trainer/directory/metrics_reader.h"

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
  return open_own_file(path, O_WRONLY | O_CREAT | O_APPEND);
}

// Returns whether the path still names the open file, which others may move or remove.
bool is_named(const UniqueFd& fd) {
  struct ::stat opened{}, named{};
  return ::fstat(fd.get(), &opened) == 0 && ::lstat(fd.path().c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

void cut_file(const UniqueFd& fd, Bytes bytes) {
  if (::ftruncate(fd.get(), bytes) != 0) throw IoError("cut", fd.path(), errno);
  sync_file(fd);
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
                            {"device_tensors", record.memory.device_tensors},
                            {"host_pinned", record.memory.host_pinned},
                            {"host_rss", record.memory.host_rss}};
  object["allocator_retries"] = record.memory.allocator_retries;
  if (record.aux_loss) object["aux_loss"] = *record.aux_loss;
  if (record.router) {
    object["router"] = {{"load", record.router->load},
                        {"max_load", record.router->most},
                        {"idle_experts", record.router->idle},
                        {"entropy", record.router->entropy},
                        {"dropped", 0}};  // every routed token is computed
  }
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

std::vector<Scalar> scalars_of(const StepRecord& record) {
  std::vector<Scalar> scalars = {{"train/loss", record.loss},
                                 {"train/lr", record.lr},
                                 {"train/grad_norm", record.grad_norm},
                                 {"train/clip_scale", record.clip_scale},
                                 {"train/epoch", record.epoch},
                                 {"train/skipped_total", static_cast<double>(record.skipped_total)},
                                 {"speed/tokens_per_second", record.tokens_per_second},
                                 {"speed/step_seconds", record.seconds}};
  for (const auto& [name, seconds] : record.stall_seconds) {
    scalars.push_back({"stall_seconds/" + name, seconds});
  }
  if (record.aux_loss) scalars.push_back({"train/aux_loss", *record.aux_loss});
  if (record.router) {
    scalars.push_back({"router/max_load", record.router->most});
    scalars.push_back({"router/idle_experts", static_cast<double>(record.router->idle)});
    scalars.push_back({"router/entropy", record.router->entropy});
    scalars.push_back({"router/dropped", 0.0});
  }
  const MemoryRecord& memory = record.memory;
  for (const auto& [name, bytes] :
       {std::pair("device_peak", memory.device_peak), std::pair("device_plan", memory.device_plan),
        std::pair("device_tensors", memory.device_tensors),
        std::pair("host_pinned", memory.host_pinned), std::pair("host_rss", memory.host_rss)}) {
    scalars.push_back({std::string("memory_bytes/") + name, static_cast<double>(bytes)});
  }
  return scalars;
}

std::vector<Scalar> scalars_of(const EvalRecord& record) {
  return {{"eval/loss", record.loss}, {"eval/perplexity", record.perplexity}};
}

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

double MetricsFile::now_seconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

void MetricsFile::write_line(const Json& object) {
  // Invalid UTF-8 from a path or an error text is replaced, so that every line can be written.
  const std::string line =
      object.dump(-1, ' ', false, nlohmann::detail::error_handler_t::replace) + "\n";
  waiting_ += line;
  write_waiting();
}

void MetricsFile::write_waiting() {
  if (waiting_.empty()) return;
  if (!is_named(fd_)) {
    failure_ = fd_.path() + ": was removed or replaced while the run went on";
    return;
  }
  try {
    write_all(fd_, waiting_);
    bytes_ += static_cast<Bytes>(waiting_.size());
    waiting_.clear();
    failure_.clear();
  } catch (const IoError& error) {
    if (failure_.empty()) failure_ = error.what();
    // A partly written line is cut off so that the next one starts on a line of its own.
    if (::ftruncate(fd_.get(), bytes_) != 0) failure_ += "; and a torn line stays";
  }
}

void MetricsFile::sync() {
  write_waiting();
  if (::fsync(fd_.get()) != 0 && failure_.empty()) {
    failure_ = IoError("fsync", fd_.path(), errno).what();
  }
}

}  // namespace longshore
