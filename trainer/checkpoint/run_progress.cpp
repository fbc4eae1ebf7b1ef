#include "trainer/checkpoint/run_progress.h"

#include <bit>
#include <charconv>
#include <cmath>

#include "base/bytes.h"
#include "base/errors.h"
#include "base/hash.h"
#include "base/texts.h"

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

std::string corrections_text(std::span<const float> corrections) {
  std::string text;
  for (const float value : corrections) text += formatted("%08x", std::bit_cast<uint32_t>(value));
  return text;
}

std::vector<float> read_corrections(const std::string& text, const std::string& where) {
  constexpr size_t kDigits = 8;
  std::vector<float> corrections;
  for (size_t at = 0; at < text.size(); at += kDigits) {
    const std::string_view digits = std::string_view(text).substr(at, kDigits);
    uint32_t bits = 0;
    const auto [end, error] = std::from_chars(digits.begin(), digits.end(), bits, 16);
    const bool read = digits.size() == kDigits && error == std::errc() && end == digits.end();
    corrections.push_back(std::bit_cast<float>(bits));
    if (!read || !std::isfinite(corrections.back())) {
      throw CheckpointError(where + ": the corrections of the routers are damaged");
    }
  }
  return corrections;
}

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
