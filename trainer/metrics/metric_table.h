// The table of metrics: one row for each key of a line of metrics.jsonl. The writer of lines, the
// JSON Schema of `config schema --metrics`, the tags of TensorBoard and of scripts/follow_metrics,
// and the reader of run records are loops over it. Constants and pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/json.h"

namespace longshore {

struct StepRecord;
struct EvalRecord;

enum class MetricType : uint8_t {
  kWhole,  // 0 or more
  kReal,   // null where it is not finite
  kSeconds,
  kText,
  kFlag,
  kSecondsByName,
  kBytesByName,
  kRealByName,  // members are null where they are not finite
  kSecondsByRank,
  kSlowestRank,
  kRouter,
};

struct MetricField {
  const char* key;
  MetricType type;
  const char* description;
  const char* tag = "";  // of a tracker; an object's members are "<tag>/<name>"; "": not drawn
  bool always = true;    // false: some lines of the kind lack it
};

template <typename Record>
struct MetricRow : MetricField {
  // The value in a line; nothing where this record lacks it.
  std::optional<Json> (*value)(const Record& record);
};

template <typename Record>
struct MetricKind {
  const char* name;
  const char* description;
  std::span<const MetricRow<Record>> rows;  // `kind` and `time`, which every line has, are no rows
};

// Defined for each record of trainer/metrics/metrics.h.
template <typename Record>
const MetricKind<Record>& metric_kind();

template <>
const MetricKind<StepRecord>& metric_kind();
template <>
const MetricKind<EvalRecord>& metric_kind();

// The lines of metrics.jsonl as a JSON Schema (draft 2020-12) of one line, for programs that read
// them. Later versions may add keys, so others are allowed.
std::string metrics_schema();

}  // namespace longshore
