#include "offload/engine/probe/sample_cache.h"

#include "base/errors.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"

namespace longshore {
namespace {

constexpr JsonLimits kLimits{.max_bytes = kMiB, .max_depth = 8, .max_values = 100'000};
// No measurement is larger.
constexpr int64_t kMost = int64_t{1} << 50;

int64_t number(const Json& json) {
  const auto value = json.get<int64_t>();
  if (value < 0 || value > kMost) throw DataError("a figure out of bounds");
  return value;
}

Json json_of(const ProbeSample& sample) {
  const ProbeInput& input = sample.input;
  return {{"kind", input.kind},
          {"positions", input.positions},
          {"document", input.document},
          {"trained", input.trained},
          {"forward", sample.trace.forward},
          {"saved", sample.trace.saved},
          {"backward", sample.trace.backward},
          {"too_large", sample.trace.too_large}};
}

ProbeSample sample_of(const Json& json) {
  ProbeSample sample;
  sample.input = {.kind = static_cast<int32_t>(number(json.at("kind"))),
                  .positions = number(json.at("positions")),
                  .document = number(json.at("document")),
                  .trained = number(json.at("trained"))};
  sample.trace.forward = number(json.at("forward"));
  sample.trace.saved = number(json.at("saved"));
  sample.trace.too_large = json.at("too_large").get<bool>();
  for (const Json& phase : json.at("backward")) sample.trace.backward.push_back(number(phase));
  return sample;
}

}  // namespace

std::string samples_to_text(const std::string& key, const std::vector<ProbeSample>& samples) {
  Json list = Json::array();
  for (const ProbeSample& sample : samples) list.push_back(json_of(sample));
  const std::string text = list.dump();
  const Json json = {{"key", key}, {"hash", hash_text(hash64(text))}, {"samples", list}};
  return json.dump() + "\n";
}

std::optional<std::vector<ProbeSample>> samples_of_text(const std::string& text,
                                                        const std::string& key) {
  try {
    const Json json = parse_json(text, kLimits, "measured workspace");
    const Json& list = json.at("samples");
    if (json.at("key").get<std::string>() != key || !list.is_array()) return std::nullopt;
    if (json.at("hash").get<std::string>() != hash_text(hash64(list.dump()))) return std::nullopt;
    std::vector<ProbeSample> samples;
    for (const Json& one : list) samples.push_back(sample_of(one));
    return samples;
  } catch (const Error&) {
  } catch (const Json::exception&) {
  }
  return std::nullopt;
}

std::string SampleCache::path_of(const std::string& key) const {
  return directory_ + "/" + hash_text(hash64(key)) + ".json";
}

std::optional<std::vector<ProbeSample>> SampleCache::find(const std::string& key) const {
  if (directory_.empty()) return std::nullopt;
  try {
    return samples_of_text(read_whole_file(path_of(key), kLimits.max_bytes), key);
  } catch (const Error&) {
    return std::nullopt;
  }
}

void SampleCache::keep(const std::string& key, const std::vector<ProbeSample>& samples) const {
  if (directory_.empty()) return;
  try {
    make_directories(directory_);
    write_file_durably(path_of(key), samples_to_text(key, samples));
  } catch (const Error&) {
    // A full or read-only disk only costs a new probe at the next start.
  }
}

}  // namespace longshore
