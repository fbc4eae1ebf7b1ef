#include "trainer/bench_run/bench_row.h"

#include <torch/headeronly/version.h>

#include <algorithm>
#include <numeric>

#include "base/errors.h"
#include "base/file.h"
#include "base/measurement.h"
#include "device/cuda_runtime.h"
#include "offload/forecast/forecast_text.h"
#include "trainer/bench_run/source_commit.h"
#include "trainer/device/run_environment.h"
#include "trainer/directory/metrics_reader.h"

namespace longshore {
namespace {

constexpr size_t kWarmUpSteps = 2;

// Returns the version of NVIDIA's kernel driver, such as "580.95.05"; null without one.
Json driver_version() {
  const std::string line = first_line("/proc/driver/nvidia/version").value_or("");
  const size_t name = line.find("Module");
  const size_t begin = name == std::string::npos ? name : line.find_first_of("0123456789", name);
  if (begin == std::string::npos) return nullptr;
  return line.substr(begin, line.find(' ', begin) - begin);
}

Json text_or_null(const std::string& text) {
  return text.empty() ? Json(nullptr) : Json(text);
}

Json machine_json(const MeasuredRun& run, const TierPlan& plan) {
  const Machine& here = run.here;
  Json json = {{"gpu", nullptr},
               {"gpu_bytes", nullptr},
               {"compute_capability", nullptr},
               {"driver", driver_version()},
               {"cpu", here.cpu_model},
               {"simd", name_of(here.simd)},
               {"physical_cores", here.physical_cores},
               {"logical_cores", here.logical_cores},
               {"memory_bytes", here.ram_total},
               {"compute_threads", plan.compute_threads},
               {"optimizer_threads", plan.optimizer_threads}};
  if (plan.device.kind == DeviceKind::kCuda && !here.gpus.empty()) {
    const CudaDevice& gpu = here.gpus.front();
    json["gpu"] = gpu.name;
    json["gpu_bytes"] = gpu.memory_bytes;
    json["compute_capability"] =
        std::to_string(gpu.compute_major) + "." + std::to_string(gpu.compute_minor);
  }
  return json;
}

Json versions_json() {
  const Json environment = run_environment();
  return {{"longshore", LONGSHORE_VERSION},
          {"commit", text_or_null(source_commit())},
          {"build", build_id()},
          {"libtorch", TORCH_VERSION},
          {"cuda", text_or_null(LONGSHORE_CUDA_VERSION)},
          {"driver_cuda", text_or_null(cuda_driver_version())},
          {"system", environment.value("system", "")}};
}

Json settings_json(const BenchFacts& facts) {
  const RunConfig& config = facts.run.config;
  Json way = Json::object();
  for (const Override& key : facts.bench.way) {
    if (key.key != "offload.nvme") way[key.key] = key.value.substr(1, key.value.size() - 2);
  }
  return {{"max_tokens", config.data.max_tokens},
          {"sequences_per_step", config.train.sequences_per_step},
          {"micro_batch", facts.run.inputs.micro_batch},
          {"units", facts.run.inputs.units},
          {"drives", facts.target.drives.size()},
          {"way", way}};
}

// Returns the planned and measured bytes of a step by link. A step's last update may belong to the
// next one, so the measurement is the median over the steps after the warm-up.
Json moved_json(const StepTraffic& planned, const MeasuredSteps& steps) {
  const std::pair<const char*, Bytes> links[] = {{"h2d", planned.h2d},
                                                 {"d2h", planned.d2h},
                                                 {"drive_read", planned.nvme_read},
                                                 {"drive_write", planned.nvme_written},
                                                 {"file_read", planned.files_read}};
  Json json = Json::object();
  for (const auto& [name, bytes] : links) {
    std::vector<double> measured;
    for (size_t i = std::min(kWarmUpSteps, steps.bytes.size() - 1); i < steps.bytes.size(); ++i) {
      measured.push_back(steps.bytes[i].at(name).get<double>());
    }
    json[name] = {{"planned", bytes}, {"measured", static_cast<Bytes>(median_of(measured))}};
  }
  return json;
}

Json speed_json(const BenchFacts& facts) {
  const double seconds = facts.steps.median_seconds();
  const auto [least, most] = std::ranges::minmax(facts.steps.seconds);
  return {{"tokens_per_second",
           {{"planned", facts.forecast.at("tokens_per_second")},
            {"measured", static_cast<double>(facts.steps.tokens) / seconds}}},
          {"step_seconds",
           {{"planned", facts.forecast.at("step_seconds")},
            {"measured", seconds},
            {"least", least},
            {"most", most}}},
          {"wall", facts.forecast.at("wall")}};
}

Json memory_json(const BenchFacts& facts) {
  const TierPlan& plan = facts.plan;
  const std::vector<Bytes>& files = plan.drives.files;
  return {{"device",
           {{"cap", plan.device.limit},
            {"planned", plan.device.total},
            {"peak", facts.steps.device_peak}}},
          {"host",
           {{"planned", plan.host.total},
            {"planned_arena", plan.host.arena},
            {"arena", facts.steps.host_arena},
            {"peak", facts.steps.host_peak}}},
          {"drives",
           {{"planned", std::accumulate(files.begin(), files.end(), Bytes{0})},
            {"taken", facts.drive_bytes}}}};
}

}  // namespace

double MeasuredSteps::median_seconds() const {
  const size_t skipped = std::min(kWarmUpSteps, seconds.size() - 1);
  return median_of(
      std::vector<double>(seconds.begin() + static_cast<ptrdiff_t>(skipped), seconds.end()));
}

MeasuredSteps read_measured_steps(const std::string& metrics_file) {
  MeasuredSteps steps;
  read_metrics(metrics_file, {"step"}, [&steps](const MetricsLine& line) {
    const Json& step = line.object;
    const Json& memory = step.at("memory_bytes");
    steps.seconds.push_back(step.at("seconds").get<double>());
    steps.tokens = step.at("tokens").get<int64_t>();
    steps.bytes.push_back(step.at("bytes"));
    steps.device_peak = std::max(steps.device_peak, memory.at("device_peak").get<Bytes>());
    steps.host_arena = std::max(steps.host_arena, memory.at("host_pinned").get<Bytes>());
    steps.host_peak = std::max(steps.host_peak, memory.at("host_rss").get<Bytes>());
    steps.last_loss = line.number("loss").value_or(0.0);
    if (steps.seconds.size() == 1) steps.first_loss = steps.last_loss;
    return true;
  });
  LONGSHORE_CHECK(!steps.seconds.empty()) << metrics_file;
  return steps;
}

Json bench_row(const BenchFacts& facts) {
  Json row = {{"row", kBenchRowVersion},
              {"date", today()},
              {"recipe", facts.recipe.name},
              {"tiny", facts.target.tiny},
              {"weights", facts.target.random ? "random" : "given"},
              {"parameters", facts.plan.parameters},
              {"trained", facts.plan.trainable},
              {"device_memory", text_or_null(facts.target.device_memory)},
              {"host_memory", text_or_null(facts.target.host_memory)},
              {"settings", settings_json(facts)},
              {"steps", facts.steps.seconds.size()}};
  row.update(speed_json(facts));
  row["bytes"] = memory_json(facts);
  row["moved"] = moved_json(facts.plan.step.traffic, facts.steps);
  row["loss"] = {{"first", facts.steps.first_loss}, {"last", facts.steps.last_loss}};
  row["check"] = facts.check.to_json();
  row["machine"] = machine_json(facts.run, facts.plan);
  row["rates"] = facts.rates == nullptr ? Json(nullptr) : rates_to_json(*facts.rates);
  row["versions"] = versions_json();
  return row;
}

}  // namespace longshore
