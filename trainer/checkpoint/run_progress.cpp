#include "trainer/checkpoint/run_progress.h"

#include "base/bytes.h"
#include "base/errors.h"
#include "base/hash.h"

namespace longshore {
namespace {

constexpr int64_t kMostSeed = std::numeric_limits<int64_t>::max();  // the upper bound of run.seed

DataState read_data_state(const JsonFields& fields) {
  DataState data;
  data.cursor.seed = static_cast<uint64_t>(fields.count("seed", kMostSeed));
  data.cursor.epoch = fields.count("epoch", kMostSteps);
  data.cursor.position = fields.count("position", kMostSteps);
  data.fingerprint = fields.hash("data");
  if (!fields.has("sequences")) return data;
  data.sequences = fields.count("sequences", kMostSteps);
  if (data.cursor.position >= data.sequences) {
    fields.fail("position " + std::to_string(data.cursor.position) + " is beyond the " +
                std::to_string(data.sequences) + " sequences of an epoch");
  }
  const auto samples = checked_multiply(data.cursor.epoch, data.sequences);
  if (!samples || *samples > kMostSteps) fields.fail("epoch is beyond what a run can have seen");
  return data;
}

void check_counters(const RunProgress& progress, const JsonFields& fields) {
  if (progress.adam_step > progress.step.value) fields.fail("more updates than steps");
  if (progress.skipped_total > progress.step.value) fields.fail("more skipped steps than steps");
  if (progress.skipped_in_row > progress.skipped_total) {
    fields.fail("more steps skipped in a row than in total");
  }
}

}  // namespace

Json sampler_json(const DataState& data) {
  Json object = {
      {"seed", data.cursor.seed}, {"epoch", data.cursor.epoch}, {"position", data.cursor.position}};
  if (data.sequences > 0) object["sequences"] = data.sequences;
  object["data"] = hash_text(data.fingerprint);
  return object;
}

void read_progress(const JsonFields& fields, RunProgress& progress) {
  check_counters(progress, fields);
  progress.seed = static_cast<uint64_t>(fields.count("seed", kMostSeed));
  const JsonFields sampler = fields.object("sampler");
  progress.data = read_data_state(sampler);
  if (progress.data.cursor.seed != progress.seed) {
    sampler.fail("its seed is not the run's");
  }
  fields.hash("model_fingerprint");
  progress.model_fingerprint = fields.text("model_fingerprint");
}

}  // namespace longshore
