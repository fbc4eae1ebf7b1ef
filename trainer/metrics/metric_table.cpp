#include "trainer/metrics/metric_table.h"

#include <array>
#include <cmath>
#include <type_traits>
#include <utility>
#include <vector>

#include "model/losses/losses.h"
#include "trainer/metrics/metrics.h"

namespace longshore {
namespace {

using enum MetricType;

template <typename Record, typename Value>
Record record_of(Value Record::*);

template <typename Value>
std::optional<Json> json_of(const Value& value) {
  return Json(value);
}
std::optional<Json> json_of(const Step& step) {
  return Json(step.value);
}
std::optional<Json> json_of(const std::optional<double>& value) {
  return value ? std::optional<Json>(*value) : std::nullopt;
}
template <typename Value>
std::optional<Json> json_of(const std::vector<std::pair<std::string, Value>>& values) {
  if (values.empty()) return std::nullopt;
  Json object = Json::object();
  for (const auto& [name, value] : values) object[name] = value;
  return object;
}
std::optional<Json> json_of(const MemoryRecord& memory) {
  return Json{{"device_peak", memory.device_peak},
              {"device_plan", memory.device_plan},
              {"device_tensors", memory.device_tensors},
              {"host_pinned", memory.host_pinned},
              {"host_rss", memory.host_rss}};
}
std::optional<Json> json_of(const std::optional<RouterStatistics>& router) {
  if (!router) return std::nullopt;
  return Json{{"load", router->load},
              {"max_load", router->most},
              {"idle_experts", router->idle},
              {"entropy", router->entropy},
              {"dropped", 0}};  // every choice of a router is computed
}

// The value of a member of the record.
template <auto kMember>
std::optional<Json> member(const decltype(record_of(kMember))& record) {
  return json_of(record.*kMember);
}

std::optional<Json> slowest_rank(const StepRecord& record) {
  if (record.times.size() < 2) return std::nullopt;
  const SlowestRank slowest = slowest_of(record.times);
  return Json{
      {"rank", slowest.rank.value}, {"resource", slowest.resource}, {"seconds", slowest.seconds}};
}

std::optional<Json> waited_seconds(const StepRecord& record) {
  if (record.times.size() < 2) return std::nullopt;
  Json waited = Json::array();
  for (const RankTimes& times : record.times) waited.push_back(times.waited);
  return waited;
}

// The rows of figures of losses, in a record of a step or an evaluation.
template <typename Record, const auto& kFigures>
constexpr auto figure_rows() {
  return []<size_t... I>(std::index_sequence<I...>) {
    constexpr bool kIsStep = std::is_same_v<Record, StepRecord>;
    return std::array{MetricRow<Record>{
        {kFigures[I].key, kReal, kFigures[I].description,
         kIsStep ? kFigures[I].step_tag : kFigures[I].eval_tag, false},
        [](const Record& record) {
          const double* const value = figure_of(record.figures, kFigures[I].key);
          return value == nullptr ? std::optional<Json>() : std::optional<Json>(*value);
        }}...};
  }(std::make_index_sequence<kFigures.size()>());
}

std::optional<Json> allocator_retries(const StepRecord& record) {
  return Json(record.memory.allocator_retries);
}

using Start = MetricRow<StartRecord>;
constexpr std::array kStart = {
    Start{{"plan", kText, "The plan's fingerprint."}, member<&StartRecord::plan>},
    Start{{"config_hash", kText, "The hash of the resolved run file."},
          member<&StartRecord::config_hash>},
    Start{{"ranks", kWhole, "The number of ranks."}, member<&StartRecord::ranks>},
    Start{{"resumed_from", kWhole, "The step that this process resumes after; 0 for a new run."},
          member<&StartRecord::resumed_from>},
};

using StepRow = MetricRow<StepRecord>;
constexpr std::array kStepBegin = {
    StepRow{{"step", kWhole, "The number of the step, from 1."}, member<&StepRecord::step>},
    StepRow{{"loss", kReal, "The mean loss of the step's trained tokens or pairs, over all ranks.",
             "train/loss"},
            member<&StepRecord::loss>},
    StepRow{{"grad_norm", kReal, "The gradient norm before clipping.", "train/grad_norm"},
            member<&StepRecord::grad_norm>},
    StepRow{{"clip_scale", kReal, "The factor that clipping multiplied gradients with.",
             "train/clip_scale"},
            member<&StepRecord::clip_scale>},
    StepRow{{"lr", kReal, "The learning rate of the step.", "train/lr"}, member<&StepRecord::lr>},
    StepRow{{"tokens", kWhole, "The tokens of the step, over all ranks."},
            member<&StepRecord::tokens>},
    StepRow{{"trained_tokens", kWhole, "The tokens of the step that have a loss."},
            member<&StepRecord::trained_tokens>},
    StepRow{{"sequences", kWhole, "The sequences of the step, over all ranks."},
            member<&StepRecord::sequences>},
    StepRow{{"epoch", kReal, "The number of passes over the data so far.", "train/epoch"},
            member<&StepRecord::epoch>},
    StepRow{{"seconds", kSeconds, "The time that the step took.", "speed/step_seconds"},
            member<&StepRecord::seconds>},
    StepRow{{"tokens_per_second", kReal, "The rate of tokens, over all ranks.",
             "speed/tokens_per_second"},
            member<&StepRecord::tokens_per_second>},
    StepRow{{"stall_seconds", kSecondsByName, "The time that compute waited, by stream.",
             "stall_seconds", false},
            member<&StepRecord::stall_seconds>},
    StepRow{{"bytes", kBytesByName, "The bytes that the step moved, by link or collective.",
             "bytes", false},
            member<&StepRecord::bytes>},
    StepRow{{"slowest_rank", kSlowestRank,
             "The rank that the others waited for, the resource that bounds it, and for how long.",
             "", false},
            slowest_rank},
    StepRow{
        {"waited_seconds", kSecondsByRank, "The time that each rank waited for others.", "", false},
        waited_seconds},
    StepRow{{"memory_bytes", kBytesByName,
             "The memory of the device and of the host: planned, taken, and filled by tensors.",
             "memory_bytes"},
            member<&StepRecord::memory>},
    StepRow{{"allocator_retries", kWhole,
             "How often, so far, a GPU's allocator met a request only after it freed its cache."},
            allocator_retries},
    StepRow{{"token_accuracy", kReal,
             "The share of trained tokens that have the highest score; if answers are judged, of "
             "those of the chosen ones. Not with distillation or a head in pieces.",
             "train/token_accuracy", false},
            member<&StepRecord::token_accuracy>},
    StepRow{{"entropy", kReal,
             "The mean entropy, in nats, of the distributions that predict trained tokens. Not "
             "with distillation or a head in pieces.",
             "train/entropy", false},
            member<&StepRecord::entropy>},
    StepRow{{"aux_loss", kReal, "The loss that balances experts, without its coefficient.",
             "train/aux_loss", false},
            member<&StepRecord::aux_loss>},
};
constexpr std::array kStepRouter = {
    StepRow{
        {"router", kRouter, "The choices of routers; written with log.router.", "router", false},
        member<&StepRecord::router>},
};
constexpr std::array kStepEnd = {
    StepRow{{"skipped", kFlag,
             "Whether the loss or the norm was not finite, so that nothing was updated."},
            member<&StepRecord::skipped>},
    StepRow{{"skipped_total", kWhole, "The number of steps skipped so far.", "train/skipped_total"},
            member<&StepRecord::skipped_total>},
};

constexpr auto kStep =
    joined_arrays(kStepBegin, figure_rows<StepRecord, kTokenFigures>(), kStepRouter,
                  figure_rows<StepRecord, kAnswerFigures>(), kStepEnd);

std::optional<Json> sets(const EvalRecord& record) {
  return record.sets.empty() ? std::nullopt : std::optional<Json>(record.sets);
}

using Eval = MetricRow<EvalRecord>;
constexpr std::array kEvalBegin = {
    Eval{{"step", kWhole, "The step after which the evaluation ran."}, member<&EvalRecord::step>},
    Eval{{"loss", kReal, "The mean loss of the evaluation's trained tokens or pairs.", "eval/loss"},
         member<&EvalRecord::loss>},
    Eval{{"perplexity", kReal, "The exponential of the loss, with train.loss = \"sft\".",
          "eval/perplexity", false},
         member<&EvalRecord::perplexity>},
    Eval{{"token_accuracy", kReal,
          "The share of trained tokens that have the highest score; with train.loss = \"sft\" or "
          "\"distill\".",
          "eval/token_accuracy", false},
         member<&EvalRecord::token_accuracy>},
};
constexpr std::array kEvalEnd = {
    Eval{{"tokens", kWhole, "The tokens that were evaluated."}, member<&EvalRecord::tokens>},
    Eval{{"seconds", kSeconds, "The time that the evaluation took."}, member<&EvalRecord::seconds>},
    Eval{{"sets", kRealByName,
          "The mean loss of each set of eval.sets, under its name and /loss, and its "
          "accuracy, under its name and /token_accuracy.",
          "eval", false},
         sets},
};
constexpr auto kEval = joined_arrays(kEvalBegin, figure_rows<EvalRecord, kTokenFigures>(), kEvalEnd,
                                     figure_rows<EvalRecord, kAnswerFigures>());

using Checkpoint = MetricRow<CheckpointRecord>;
constexpr std::array kCheckpoint = {
    Checkpoint{{"step", kWhole, "The step whose state the checkpoint holds."},
               member<&CheckpointRecord::step>},
    Checkpoint{{"path", kText, "The checkpoint's directory."}, member<&CheckpointRecord::path>},
    Checkpoint{{"bytes", kWhole, "The size of its files."}, member<&CheckpointRecord::bytes>},
    Checkpoint{{"seconds", kSeconds, "The time that writing it took."},
               member<&CheckpointRecord::seconds>},
};

using Commit = MetricRow<CommitRecord>;
constexpr std::array kCommit = {
    Commit{{"step", kWhole, "The step whose state is durable on the drives."},
           member<&CommitRecord::step>},
    Commit{{"version", kWhole, "The version of the state."}, member<&CommitRecord::version>},
    Commit{{"seconds", kSeconds, "The time that the commit took."}, member<&CommitRecord::seconds>},
};

using Event = MetricRow<EventRecord>;
constexpr std::array kEvent = {
    Event{{"level", kText, "The severity: info, warning or error."}, member<&EventRecord::level>},
    Event{{"code", kText, "A stable word for programs, such as step_skipped."},
          member<&EventRecord::code>},
    Event{{"rank", kWhole, "The rank that reports the event."}, member<&EventRecord::rank>},
    Event{{"text", kText, "The message for people."}, member<&EventRecord::text>},
};

using End = MetricRow<EndRecord>;
constexpr std::array kEnd = {
    End{{"status", kText, "How the run ended: done."}, member<&EndRecord::status>},
    End{{"exit_code", kWhole, "The exit code of the process."}, member<&EndRecord::exit_code>},
    End{{"steps", kWhole, "The number of steps done."}, member<&EndRecord::steps>},
};

Json by_name(Json value) {
  return {{"type", "object"}, {"additionalProperties", std::move(value)}};
}

Json schema_of(MetricType type) {
  const Json whole = {{"type", "integer"}, {"minimum", 0}};
  const Json seconds = {{"type", "number"}, {"minimum", 0}};
  switch (type) {
    case kWhole:
      return whole;
    case kReal:
      return {{"type", Json::array({"number", "null"})}};
    case kSeconds:
      return seconds;
    case kText:
      return {{"type", "string"}};
    case kFlag:
      return {{"type", "boolean"}};
    case kSecondsByName:
      return by_name(seconds);
    case kBytesByName:
      return by_name(whole);
    case kRealByName:
      return by_name({{"type", Json::array({"number", "null"})}});
    case kSecondsByRank:
      return {{"type", "array"}, {"items", seconds}};
    case kSlowestRank:
      return {{"type", "object"},
              {"required", {"rank", "resource", "seconds"}},
              {"properties",
               {{"rank", whole}, {"resource", {{"type", "string"}}}, {"seconds", seconds}}}};
    case kRouter: {
      const Json layer = {{"type", "array"}, {"items", whole}};
      return {{"type", "object"},
              {"required", {"load", "max_load", "idle_experts", "entropy", "dropped"}},
              {"properties",
               {{"load", {{"type", "array"}, {"items", layer}}},
                {"max_load", schema_of(kReal)},
                {"idle_experts", whole},
                {"entropy", schema_of(kReal)},
                {"dropped", whole}}}};
    }
  }
  return {};
}

template <typename Record>
Json schema_of() {
  const MetricKind<Record>& kind = metric_kind<Record>();
  Json properties = {
      {"kind", {{"const", kind.name}}},
      {"time",
       {{"type", "number"}, {"description", "Seconds since 1970, by the machine's clock."}}}};
  Json required = {"kind", "time"};
  for (const MetricField& field : kind.rows) {
    Json schema = schema_of(field.type);
    schema["description"] = field.description;
    if (*field.tag != '\0') schema["x-tag"] = field.tag;
    properties[field.key] = std::move(schema);
    if (field.always) required.push_back(field.key);
  }
  return {{"type", "object"},
          {"description", kind.description},
          {"required", std::move(required)},
          {"properties", std::move(properties)}};
}

}  // namespace

template <>
const MetricKind<StartRecord>& metric_kind() {
  static constexpr MetricKind<StartRecord> kKind = {"start", "A process began.", kStart};
  return kKind;
}
template <>
const MetricKind<StepRecord>& metric_kind() {
  static constexpr MetricKind<StepRecord> kKind = {"step", "An optimizer step, over all ranks.",
                                                   kStep};
  return kKind;
}
template <>
const MetricKind<EvalRecord>& metric_kind() {
  static constexpr MetricKind<EvalRecord> kKind = {"eval", "An evaluation.", kEval};
  return kKind;
}
template <>
const MetricKind<CheckpointRecord>& metric_kind() {
  static constexpr MetricKind<CheckpointRecord> kKind = {"checkpoint", "A checkpoint is in place.",
                                                         kCheckpoint};
  return kKind;
}
template <>
const MetricKind<CommitRecord>& metric_kind() {
  static constexpr MetricKind<CommitRecord> kKind = {"commit", "A step is durable on the drives.",
                                                     kCommit};
  return kKind;
}
template <>
const MetricKind<EventRecord>& metric_kind() {
  static constexpr MetricKind<EventRecord> kKind = {"event", "A sample, a warning or an error.",
                                                    kEvent};
  return kKind;
}
template <>
const MetricKind<EndRecord>& metric_kind() {
  static constexpr MetricKind<EndRecord> kKind = {"end", "The run is done.", kEnd};
  return kKind;
}

std::string metrics_schema() {
  const Json kinds =
      Json::array({schema_of<StartRecord>(), schema_of<StepRecord>(), schema_of<EvalRecord>(),
                   schema_of<CheckpointRecord>(), schema_of<CommitRecord>(),
                   schema_of<EventRecord>(), schema_of<EndRecord>()});
  const Json schema = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                       {"title", "Longshore: a line of metrics.jsonl"},
                       {"oneOf", kinds}};
  return schema.dump(2) + "\n";
}

}  // namespace longshore
