#include "offload/forecast/forecast_text.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>

#include "base/texts.h"
#include "offload/forecast/decode_forecast.h"
#include "offload/forecast/machine_rates.h"
#include "offload/plan/plan_text.h"
#include "shard/state_format.h"

namespace longshore {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kMeasure[] = "longshore check machine --rates";
// Smaller differences are within the error of a forecast.
constexpr double kWorthSaying = 0.03;
constexpr size_t kMostChanges = 3;
constexpr size_t kMostLines = 4;

std::string number(double value, const char* format) {
  return formatted(format, value);
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) text += (i > 0 ? ", " : "") + parts[i];
  return text;
}

const char* work_of(Lane lane) {
  switch (lane) {
    case Lane::kRead:
      return "reading from the drives";
    case Lane::kUpdate:
      return "the optimizer's update";
    case Lane::kH2D:
      return "copying to the device";
    case Lane::kGather:
      return "gathering from other ranks";
    case Lane::kCompute:
      return "computation";
    case Lane::kReduce:
      return "summing gradients over ranks";
    case Lane::kD2H:
      return "copying to the host";
    case Lane::kWrite:
      return "writing to the drives";
  }
  return "";
}

// Returns advice for the limiting lane, for when no other plan is faster.
const char* remedy_of(Lane lane) {
  switch (lane) {
    case Lane::kRead:
    case Lane::kWrite:
      return "more drives in offload.nvme, a narrower offload.state_format, or more "
             "train.sequences_per_step (each step moves the state once)";
    case Lane::kUpdate:
      return "more train.sequences_per_step (each step updates once), a narrower "
             "offload.state_format, or faster memory";
    case Lane::kH2D:
    case Lane::kD2H:
      return "more train.sequences_per_step (each step moves the model once), or a faster link";
    case Lane::kGather:
    case Lane::kReduce:
      return "precision.reduce = \"bf16\", more train.sequences_per_step, or a faster network";
    case Lane::kCompute:
      return "more ranks, a faster device, or shorter data.max_tokens";
  }
  return "";
}

std::string difference(const char* what, Bytes bytes) {
  if (bytes == 0) return "";
  return std::string(", ") + what + " " + format_bytes(std::abs(bytes)) +
         (bytes < 0 ? " less" : " more");
}

std::string step_line(const StepForecast& step) {
  return "  a step takes about " + rounded_seconds(step.seconds) + ": " +
         format_count(std::llround(step.tokens_per_second)) + " tokens/s\n";
}

std::string time_text(const PlanScreen& screen) {
  const RunForecast& run = screen.forecast;
  std::string text = "time\n";
  if (screen.source.empty()) {
    return text + "  not known: this machine is not measured yet; `" + kMeasure +
           "` measures it in a minute or two\n";
  }
  if (!run.step.known()) {
    return text + "  not known, because these rates are missing: " + joined(run.step.unknown) +
           "; `" + kMeasure + " RUN.toml` measures what a run needs\n";
  }
  text += step_line(run.step);
  if (run.first_step()) {
    text += "  the first step starts after about " + rounded_seconds(*run.first_step()) +
            " (reading the model " + rounded_seconds(*run.read_model) + ", preparing host memory " +
            rounded_seconds(*run.pin_memory) + ")\n";
  }
  if (run.checkpoint)
    text += "  a checkpoint takes about " + rounded_seconds(*run.checkpoint) + "\n";
  if (run.run) {
    text += "  the run takes about " + rounded_seconds(*run.run) + ", with " +
            std::to_string(run.checkpoints) + " checkpoint" + (run.checkpoints == 1 ? "" : "s");
    if (run.evaluation) text += " and " + std::to_string(run.evaluations) + " evaluations";
    if (run.evaluations > 0 && !run.evaluation) {
      text += "; its " + std::to_string(run.evaluations) +
              " evaluations are not included (their length is unknown; set eval.sequences)";
    }
    text += "\n";
  }
  if (run.watt_hours) text += "  energy: about " + number(*run.watt_hours, "%.3g") + " Wh\n";
  return text;
}

std::string wall_text(const TierPlan& plan, const PlanScreen& screen) {
  const StepForecast& step = screen.forecast.step;
  if (screen.source.empty() || !step.known()) return "";
  const double most = step.of(step.alone, step.wall), next = step.of(step.alone, step.next);
  std::string text = std::string("bottleneck: ") + work_of(step.wall) + ", " +
                     rounded_seconds(most) + " of work in each step";
  if (next > 0.0) {
    text += "; next " + std::string(work_of(step.next)) + ", " + rounded_seconds(next) + " (" +
            number(most / next, "%.1f") + " times less)";
  }
  text += "\n";
  if (plan.device.kind == DeviceKind::kCpu) {
    text += "  all of this work shares the cores of the CPU\n";
  }
  return text + "  to reduce it: " + remedy_of(step.wall) + "\n";
}

std::string better_text(const PlanScreen& screen) {
  const auto own = std::ranges::find_if(
      screen.points, [](const PlanPoint& point) { return point.changes.empty(); });
  if (own == screen.points.end()) return "";
  std::string text;
  size_t shown = 0;
  for (const PlanPoint& point : screen.points) {
    const double gain = 1.0 - point.seconds / own->seconds;
    if (point.changes.empty() || gain < kWorthSaying || shown == kMostChanges) continue;
    ++shown;
    text += "  " + change_text(point.changes) + ": a step in " + rounded_seconds(point.seconds) +
            " (" + number(100.0 * gain, "%.0f") + " % less)" +
            difference("device", point.device - own->device) +
            difference("host", point.host - own->host) + "\n";
  }
  if (text.empty()) text = "  no single key makes a step shorter without changing results\n";
  return "better\n" + text + "  the option --search tries several keys together\n";
}

// Returns whether a reader would take both plans for the same: a forecast errs by more.
bool alike(const PlanPoint& a, const PlanPoint& b) {
  constexpr double kSameTime = 0.03, kSameBytes = 0.1;
  const auto near = [](double x, double y, double share) {
    return std::abs(x - y) <= share * std::max(x, y);
  };
  const auto same = [&](Bytes PlanPoint::* bytes) {
    return near(static_cast<double>(a.*bytes), static_cast<double>(b.*bytes), kSameBytes);
  };
  return near(a.seconds, b.seconds, kSameTime) && same(&PlanPoint::device) &&
         same(&PlanPoint::host) && same(&PlanPoint::drives);
}

// Returns the indices of the points that are worth a line, in ascending order: those that take
// least of each memory, then the fastest that differ from the others by more than a little.
std::set<size_t> shown_points(const std::vector<PlanPoint>& points) {
  constexpr size_t kMostPoints = 5;
  std::set<size_t> shown;
  for (const auto figure : {&PlanPoint::device, &PlanPoint::host, &PlanPoint::drives}) {
    const auto least = std::ranges::min_element(points, {}, figure);
    if (least != points.end()) shown.insert(static_cast<size_t>(least - points.begin()));
  }
  if (!points.empty()) shown.insert(0);
  for (size_t i = 1; i < points.size() && shown.size() < kMostPoints; ++i) {
    const bool known =
        std::ranges::any_of(shown, [&](size_t other) { return alike(points[i], points[other]); });
    if (!known) shown.insert(i);
  }
  return shown;
}

// Says how long a drive lasts under a plan's writes; empty if it writes little.
std::string wear_line(const std::string& number, const PlanPoint& point,
                      std::optional<Bytes> rated_writes) {
  constexpr Bytes kMuch = 1'000'000'000;                 // written by a step
  constexpr Bytes kUsualRating = 1'200'000'000'000'000;  // of a drive of 2 TB for workstations
  if (point.drives < kMuch) return "";
  const double step = static_cast<double>(point.drives);
  const double rated = static_cast<double>(rated_writes.value_or(kUsualRating));
  return "plan " + number + " writes " + formatted("%.3g", step * 1e-9) +
         " TB to drives in 1000 steps; " +
         (rated_writes ? "its rated " : std::string("a drive rated for ")) +
         formatted("%.4g", rated * 1e-12) + (rated_writes ? " TB last " : " TB lasts ") +
         format_count(std::llround(rated / step)) + " steps, " +
         rounded_seconds(rated / step * point.seconds) + "\n";
}

std::string memory_line(const std::string& name, const std::vector<PlanLine>& lines) {
  std::vector<PlanLine> sorted = lines;
  std::ranges::stable_sort(sorted, std::greater<>(), &PlanLine::bytes);
  std::vector<std::string> parts;
  for (const PlanLine& line : sorted) {
    if (line.bytes > 0 && parts.size() < kMostLines) {
      parts.push_back(line.name + " " + format_bytes(line.bytes));
    }
  }
  return "  " + name + ": " + joined(parts) + "\n";
}

std::string head_text(const TierPlan& plan, const Machine& machine, const PlanScreen& screen) {
  std::string text = plan_verdict(plan) +
                     "model: " + count_text(static_cast<double>(plan.parameters)) +
                     " parameters, " + count_text(static_cast<double>(plan.trainable)) +
                     " trained; " + std::to_string(screen.sequences_per_step) + " sequences a step";
  if (plan.topology.ranks > 1) {
    text += " on all ranks (" + std::string(name_of(plan.topology.strategy)) +
            "; bytes below are of one rank)";
  }
  const bool gpu = plan.device.kind == DeviceKind::kCuda && !machine.gpus.empty();
  text += "\nmachine: " + machine.cpu_model + ", " + std::to_string(machine.physical_cores) +
          " cores" + (plan.ranks_per_node > 1 ? " for each rank, " : ", ") +
          format_bytes(machine.ram_total) + " of memory";
  if (gpu) {
    text += ", " + std::to_string(machine.gpus.size()) + " x " + machine.gpus.front().name;
  }
  if (!screen.source.empty()) text += "\nspeeds: " + screen.source;
  return text + "\n\n";
}

template <typename T>
Json value_or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json lanes_json(const std::array<double, kLaneCount>& seconds) {
  Json json = Json::object();
  for (size_t lane = 0; lane < kLaneCount; ++lane) {
    json[std::string(name_of(static_cast<Lane>(lane)))] = seconds[lane];
  }
  return json;
}

using Json = nlohmann::ordered_json;

std::string amount(double value, const char* unit) {
  return formatted("%.3g %s", value, unit);
}

std::string bytes_text(double rate) {
  return amount(rate / kGiga, "GB/s");
}

std::string flops_text(double rate) {
  return rate < 1e12 ? amount(rate / kGiga, "GFLOP/s") : amount(rate / 1e12, "TFLOP/s");
}

void line(std::string& text, const std::string& name, double rate, double both = 0.0) {
  if (rate <= 0.0) return;
  text += "  " + name + ": " + bytes_text(rate);
  if (both > 0.0) text += ", " + bytes_text(both) + " with the other way busy too";
  text += "\n";
}

void collective_line(std::string& text, const std::string& name, const CollectiveRate& rate) {
  if (rate.bytes <= 0.0) return;
  text += "  " + name + ": " + bytes_text(rate.bytes);
  if (rate.start_seconds > 0.0) text += ", " + amount(rate.start_seconds / kMicro, "us") + " each";
  text += "\n";
}

std::string name_of_dtype(DType dtype) {
  return dtype == DType::kBF16 ? "bf16" : "fp32";
}

std::string compute_line(const ComputeRates& rates) {
  std::string text =
      "  " + std::string(name_of(rates.device)) + ", " + name_of_dtype(rates.dtype) + ": ";
  for (size_t i = 0; i < rates.products.size(); ++i) {
    const ProductRate& product = rates.products[i];
    text += (i > 0 ? ", " : "") + flops_text(product.flops) + " (width " +
            std::to_string(static_cast<int64_t>(product.width)) + ")";
  }
  if (rates.attention > 0.0) text += "; attention " + flops_text(rates.attention);
  if (rates.adapters > 0.0) text += "; adapters " + bytes_text(rates.adapters);
  return text + "\n";
}

Json value_or_null(double value) {
  return value > 0.0 ? Json(value) : Json(nullptr);
}

template <typename Rates, typename Fields>
void put_fields(Json& json, const Fields& fields, const Rates& rates) {
  for (const RateField<Rates>& field : fields) {
    json[field.name] = value_or_null(rates.*field.member);
  }
}

Json to_json(const CollectiveRate& rate) {
  return {{"bytes", value_or_null(rate.bytes)},
          {"start_seconds", rate.start_seconds},
          {"start_core_seconds", rate.start_core_seconds},
          {"core_share", rate.core_share}};
}

}  // namespace

std::string rounded_seconds(double seconds) {
  if (seconds < 1.0) return number(seconds * 1e3, "%.3g ms");
  if (seconds < 99.5) return number(seconds, "%.3g s");
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 3600) {
    const std::string minutes = std::to_string(whole / 60) + " min";
    return whole % 60 == 0 ? minutes : minutes + " " + std::to_string(whole % 60) + " s";
  }
  const auto minutes = static_cast<int64_t>(std::llround(seconds / 60.0));
  if (minutes < 48 * 60) {
    return std::to_string(minutes / 60) + " h " + std::to_string(minutes % 60) + " min";
  }
  return number(seconds / 86400.0, "%.1f days");
}

std::string format_screen(const TierPlan& plan, const Machine& machine, const PlanScreen& screen) {
  std::string text = head_text(plan, machine, screen) + time_text(screen) + length_text(plan);
  const std::string wall = wall_text(plan, screen);
  if (!wall.empty()) text += "\n" + wall;
  const std::string better = better_text(screen);
  if (!better.empty()) text += "\n" + better;
  const std::string decoding = describe_decoding(plan, screen.decoded_per_second);
  if (!decoding.empty()) text += "\n" + decoding + "\n";
  text +=
      "\nlargest in memory\n" +
      memory_line("device (" + std::string(name_of(plan.device.kind)) + ")", plan.device.lines) +
      memory_line("host", plan.host.lines);
  const std::string drives = nvme_text(plan);
  if (!drives.empty()) text += "\n" + drives.substr(0, drives.size() - 1);
  return text + "`--bytes` shows all allocations, `--schedule` the operations of a step\n";
}

std::string format_brief(const TierPlan& plan, const PlanScreen& screen) {
  const StepForecast& step = screen.forecast.step;
  const bool known = step.known() && !screen.source.empty();
  return plan_verdict(plan) + (known ? step_line(step) : "");
}

std::string change_text(const std::vector<KeyChange>& changes) {
  std::vector<std::string> parts;
  for (const KeyChange& change : changes) parts.push_back(change.key + " = " + change.value);
  return joined(parts);
}

std::string format_points(const std::vector<PlanPoint>& points, std::optional<Bytes> rated_writes) {
  std::string text =
      "    tokens/s          step        device          host   drives: read       written   keys, "
      "of a step\n";
  std::string wear;
  for (const size_t i : shown_points(points)) {
    const PlanPoint& point = points[i];
    const auto column = [](const std::string& value, size_t width) {
      return value.size() < width ? std::string(width - value.size(), ' ') + value : value;
    };
    const std::string number = std::to_string(i + 1);
    text += column(number, 2) + column(format_count(std::llround(point.tokens_per_second)), 10) +
            column(rounded_seconds(point.seconds), 14) + column(format_bytes(point.device), 14) +
            column(format_bytes(point.host), 14) + column(format_bytes(point.read), 15) +
            column(format_bytes(point.drives), 14) + "   " +
            (point.changes.empty() ? "as in the run file" : change_text(point.changes)) + "\n";
    wear += wear_line(number, point, rated_writes);
  }
  return text + wear;
}

Json forecast_to_json(const RunForecast& forecast, const std::string& source) {
  const StepForecast& step = forecast.step;
  const bool known = step.known() && !source.empty();
  Json json = {{"known", known},
               {"rates", source.empty() ? Json(nullptr) : Json(source)},
               {"unknown", step.unknown},
               {"step_seconds", nullptr},
               {"tokens_per_second", nullptr},
               {"wall", nullptr},
               {"next", nullptr},
               {"lane_seconds", nullptr},
               {"read_model_seconds", value_or_null(forecast.read_model)},
               {"make_memory_ready_seconds", value_or_null(forecast.pin_memory)},
               {"first_step_seconds", value_or_null(forecast.first_step())},
               {"checkpoint_seconds", value_or_null(forecast.checkpoint)},
               {"checkpoints", forecast.checkpoints},
               {"evaluation_seconds", value_or_null(forecast.evaluation)},
               {"evaluations", forecast.evaluations},
               {"run_seconds", value_or_null(forecast.run)},
               {"watt_hours", value_or_null(forecast.watt_hours)}};
  if (!known) return json;
  json["step_seconds"] = step.seconds;
  json["tokens_per_second"] = step.tokens_per_second;
  json["wall"] = name_of(step.wall);
  json["next"] = name_of(step.next);
  json["lane_seconds"] = lanes_json(step.alone);
  return json;
}

Json points_to_json(const std::vector<PlanPoint>& points) {
  Json array = Json::array();
  for (const PlanPoint& point : points) {
    Json keys = Json::object();
    for (const KeyChange& change : point.changes) keys[change.key] = change.value;
    array.push_back({{"tokens_per_second", point.tokens_per_second},
                     {"step_seconds", point.seconds},
                     {"device_bytes", point.device},
                     {"host_bytes", point.host},
                     {"drive_bytes_read", point.read},
                     {"drive_bytes_written", point.drives},
                     {"changes", keys}});
  }
  return array;
}

std::string format_rates(const MachineRates& rates) {
  if (!rates.known()) return "rates: not known\n";
  std::string text = "rates (" + rates.source + ")\n";
  line(text, "copies in memory", rates.copy);
  line(text, "memory, read and written", rates.dram);
  line(text, "memory made ready", rates.pin);
  line(text, "host to device", rates.link.to_device, rates.link.to_device_both);
  line(text, "device to host", rates.link.to_host, rates.link.to_host_both);
  for (const UpdateRate& update : rates.updates) {
    line(text, "update, " + std::string(name_of(update.format)), update.bytes);
  }
  line(text, "models and checkpoints, read", rates.files_read);
  line(text, "models and checkpoints, written", rates.files_written);
  for (const DriveRates& drive : rates.drives) {
    line(text, drive.directory + ", read", drive.read, drive.read_both);
    line(text, drive.directory + ", written", drive.written, drive.written_both);
  }
  for (const GroupRates& group : rates.groups) {
    const std::string ranks =
        std::to_string(group.ranks) + " ranks (" + std::string(name_of(group.device)) + "), ";
    collective_line(text, ranks + "gather", group.gather);
    collective_line(text, ranks + "reduce-scatter", group.reduce_scatter);
    collective_line(text, ranks + "all-reduce", group.all_reduce);
  }
  for (const ComputeRates& compute : rates.compute) text += compute_line(compute);
  return text;
}

Json rates_to_json(const MachineRates& rates) {
  Json json = {{"source", rates.source}};
  put_fields(json, kMachineFields, rates);
  put_fields(json, kLinkFields, rates.link);
  json["updates"] = Json::array();
  for (const UpdateRate& update : rates.updates) {
    put_fields(json["updates"].emplace_back(Json::object({{"format", name_of(update.format)}})),
               kUpdateFields, update);
  }
  json["drives"] = Json::array();
  for (const DriveRates& drive : rates.drives) {
    put_fields(json["drives"].emplace_back(Json::object({{"directory", drive.directory}})),
               kDriveFields, drive);
  }
  json["groups"] = Json::array();
  for (const GroupRates& group : rates.groups) {
    Json& entry = json["groups"].emplace_back(
        Json{{"device", name_of(group.device)}, {"ranks", group.ranks}});
    for (const CollectiveField& field : kCollectiveFields) {
      entry[field.key] = to_json(group.*field.member);
    }
  }
  json["compute"] = Json::array();
  for (const ComputeRates& compute : rates.compute) {
    Json& entry = json["compute"].emplace_back(
        Json{{"device", name_of(compute.device)}, {"dtype", name_of_dtype(compute.dtype)}});
    put_fields(entry, kComputeFields, compute);
    entry["products"] = Json::array();
    for (const ProductRate& product : compute.products) {
      put_fields(entry["products"].emplace_back(Json::object()), kProductFields, product);
    }
  }
  return json;
}

}  // namespace longshore
