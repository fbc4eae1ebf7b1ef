// RunRecord: the contents of a run's directory. The run may still be active, may have been killed
// in the middle of a line, or may have been written by an older version, and its files may have
// been edited. So only values of the expected form are read. Plain value; one thread reads.
#pragma once

#include <cstdint>
#include <limits>
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
  std::string status = {};  // from run.json, or "killed", or "unknown"
  std::string message = {};
  // Series by key: numbers of step lines ("loss", "memory_bytes/host_rss") and of evaluations
  // ("eval/loss"). x is the step; null becomes a gap.
  std::map<std::string, std::vector<ChartPoint>> series = {};
  std::map<std::string, double> waited_by_rank = {};  // seconds summed over steps
  std::map<std::string, int64_t> slowest = {};        // number of steps by "rank 3 compute"
  std::vector<RunSample> samples = {};
  std::vector<RunEvent> events = {};
  int64_t starts = 0;
  // Seconds since the epoch of the first start and of the newest line; NaN if unknown.
  double begun = std::numeric_limits<double>::quiet_NaN();
  double newest = std::numeric_limits<double>::quiet_NaN();
  Json environment = {}, data = {}, plan = {};  // env.json, data.json, plan.json; null if missing
  std::string config = {}, command = {}, plan_text = {};

  const std::vector<ChartPoint>& of(const std::string& key) const;
  int64_t last_step() const;
};

// Describes which part of its files a set of data.json uses: "without the rows held out by
// out: 470 documents, ..."; empty if it uses all of them.
struct RecordedPart {
  bool held_out = false;
  std::string words;
};
RecordedPart part_of_files(const Json& set);

// DataError if the directory holds no record of a run.
RunRecord read_run_record(const std::string& directory);

// These return NaN if no point has a value.
double lowest_of(const std::vector<ChartPoint>& points);
double median_of(const std::vector<ChartPoint>& points);
double last_of(const std::vector<ChartPoint>& points);
double sum_of(const std::vector<ChartPoint>& points);

}  // namespace longshore
