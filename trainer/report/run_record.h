// RunRecord: what a run's directory says of it, as far as it says it: a run may be going on, may
// have been killed in the middle of a line, or be of an older version, and its files may have been
// edited. Only what has the expected form is taken. Plain value; one thread reads.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "trainer/report/line_chart.h"

namespace longshore {

struct RunSample {
  int64_t step = 0;
  std::string text;
};

struct RunEvent {
  std::string level, code, text;
};

struct RunRecord {
  std::string directory = {};
  std::string status = {};  // of run.json, or "killed", or "unknown"
  std::string message = {};
  // Numbers of step lines by key ("loss", "memory_bytes/host_rss"), of evaluations by
  // "eval/loss"; x is the step, and null is a gap.
  std::map<std::string, std::vector<ChartPoint>> series = {};
  std::map<std::string, double> waited_by_rank = {};  // seconds, summed over steps
  std::map<std::string, int64_t> slowest = {};        // steps by "rank 3 compute"
  std::vector<RunSample> samples = {};
  std::vector<RunEvent> events = {};
  int64_t starts = 0;
  Json environment = {}, data = {}, plan = {};  // env.json, data.json, plan.json; null: missing
  std::string config = {}, command = {}, plan_text = {};

  const std::vector<ChartPoint>& of(const std::string& key) const;
  int64_t last_step() const;
};

// Which part of its files a set of data.json is, in words: "without what eval.split = 0.02 held
// out: 470 documents, ..."; empty where it is all of them.
struct RecordedPart {
  bool held_out = false;
  std::string words;
};
RecordedPart part_of_files(const Json& set);

// DataError where the directory holds no record of a run.
RunRecord read_run_record(const std::string& directory);

// The least, the median and the last of the values that there are; NaN where there are none.
double least_of(const std::vector<ChartPoint>& points);
double median_of(const std::vector<ChartPoint>& points);
double last_of(const std::vector<ChartPoint>& points);
double sum_of(const std::vector<ChartPoint>& points);

}  // namespace longshore
