#include "trainer/report/metrics_schema.h"

#include <array>
#include <cstdint>
#include <span>

#include "base/json.h"

namespace longshore {
namespace {

enum class MetricType : uint8_t {
  kWhole,  // 0 or more
  kReal,   // null where it is not finite
  kSeconds,
  kText,
  kFlag,
  kSecondsByName,
  kBytesByName,
  kSecondsByRank,
  kSlowestRank,
  kRouter,
};
using enum MetricType;

struct MetricKey {
  const char* name;
  MetricType type;
  const char* sentence;
  bool always = true;  // false: the key may be missing
};

struct MetricKind {
  const char* name;
  const char* sentence;
  std::span<const MetricKey> keys;  // without `kind` and `time`, which every line has
};

constexpr std::array kStart = {
    MetricKey{"plan", kText, "the plan's fingerprint"},
    MetricKey{"config_hash", kText, "of the resolved run file"},
    MetricKey{"ranks", kWhole, "that train together"},
    MetricKey{"resumed_from", kWhole, "the step that this start goes on after; 0: a new run"},
};
constexpr std::array kStep = {
    MetricKey{"step", kWhole, "from 1"},
    MetricKey{"loss", kReal, "of all trained tokens of the step, over all ranks"},
    MetricKey{"grad_norm", kReal, "before clipping"},
    MetricKey{"clip_scale", kReal, "the factor that gradients were multiplied with"},
    MetricKey{"lr", kReal, "the rate used"},
    MetricKey{"tokens", kWhole, "of the step, over all ranks"},
    MetricKey{"trained_tokens", kWhole, "of them with a loss"},
    MetricKey{"sequences", kWhole, "of the step, over all ranks"},
    MetricKey{"epoch", kReal, "passes over the data so far"},
    MetricKey{"seconds", kSeconds, "that the step took"},
    MetricKey{"tokens_per_second", kReal, "over all ranks"},
    MetricKey{"stall_seconds", kSecondsByName, "that compute waited, by lane", false},
    MetricKey{"bytes", kBytesByName, "moved by the step, by link or collective", false},
    MetricKey{"slowest_rank", kSlowestRank, "whom the others waited for, and its resource", false},
    MetricKey{"waited_seconds", kSecondsByRank, "for other ranks, by rank", false},
    MetricKey{"memory_bytes", kBytesByName,
              "of the device and the host, planned and taken, and what tensors fill"},
    MetricKey{"allocator_retries", kWhole,
              "requests so far that a GPU's allocator met by giving back what it had kept"},
    MetricKey{"aux_loss", kReal, "that balances experts, without its coefficient", false},
    MetricKey{"router", kRouter, "what routers chose, with log.router", false},
    MetricKey{"skipped", kFlag, "the loss or norm was not finite, and nothing was updated"},
    MetricKey{"skipped_total", kWhole, "steps skipped so far"},
};
constexpr std::array kEval = {
    MetricKey{"step", kWhole, "after which it was made"},
    MetricKey{"loss", kReal, "of all trained tokens of the evaluation"},
    MetricKey{"perplexity", kReal, "e to the loss"},
    MetricKey{"tokens", kWhole, "evaluated"},
    MetricKey{"seconds", kSeconds, "that it took"},
};
constexpr std::array kCheckpoint = {
    MetricKey{"step", kWhole, "whose state it holds"},
    MetricKey{"path", kText, "of its directory"},
    MetricKey{"bytes", kWhole, "of its files"},
    MetricKey{"seconds", kSeconds, "that it took"},
};
constexpr std::array kCommit = {
    MetricKey{"step", kWhole, "whose state is durable on the drives"},
    MetricKey{"version", kWhole, "of the state"},
    MetricKey{"seconds", kSeconds, "that it took"},
};
constexpr std::array kEvent = {
    MetricKey{"level", kText, "info, warning or error"},
    MetricKey{"code", kText, "a stable word, such as step_skipped"},
    MetricKey{"rank", kWhole, "whose event it is"},
    MetricKey{"text", kText, "for people"},
};
constexpr std::array kEnd = {
    MetricKey{"status", kText, "done"},
    MetricKey{"exit_code", kWhole, "of the process"},
    MetricKey{"steps", kWhole, "that are done"},
};
constexpr std::array<MetricKind, 7> kKinds = {{
    {"start", "a process began", kStart},
    {"step", "an optimizer step, over all ranks", kStep},
    {"eval", "an evaluation", kEval},
    {"checkpoint", "a checkpoint is in place", kCheckpoint},
    {"commit", "a step is durable on the drives", kCommit},
    {"event", "a sample, or something that somebody should know", kEvent},
    {"end", "the run is done", kEnd},
}};

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

Json schema_of(const MetricKind& kind) {
  Json properties = {
      {"kind", {{"const", kind.name}}},
      {"time",
       {{"type", "number"}, {"description", "seconds since 1970, by the machine's clock"}}}};
  Json required = {"kind", "time"};
  for (const MetricKey& key : kind.keys) {
    Json schema = schema_of(key.type);
    schema["description"] = key.sentence;
    properties[key.name] = std::move(schema);
    if (key.always) required.push_back(key.name);
  }
  return {{"type", "object"},
          {"description", kind.sentence},
          {"required", std::move(required)},
          {"properties", std::move(properties)}};
}

}  // namespace

std::string metrics_schema() {
  Json kinds = Json::array();
  for (const MetricKind& kind : kKinds) kinds.push_back(schema_of(kind));
  const Json schema = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                       {"title", "Longshore: a line of metrics.jsonl"},
                       {"oneOf", std::move(kinds)}};
  return schema.dump(2) + "\n";
}

}  // namespace longshore
