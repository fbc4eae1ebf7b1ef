#include "model/families/random_init.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "base/errors.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/random.h"
#include "base/texts.h"

namespace longshore {
namespace {

// Maps bits to (0, 1): never 0, because its logarithm is infinite.
double to_unit(uint32_t bits) {
  return (static_cast<double>(bits) + 0.5) * 0x1p-32;
}

std::array<uint32_t, 4> four_bits(uint64_t block, PhiloxKey key) {
  return philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0, 0}, key);
}

// Returns four values between -1 and 1 from one call of the generator.
std::array<double, 4> four_uniforms(uint64_t block, PhiloxKey key) {
  const auto bits = four_bits(block, key);
  std::array<double, 4> values{};
  for (size_t i = 0; i < 4; ++i) values[i] = 2.0 * to_unit(bits[i]) - 1.0;
  return values;
}

// Returns four normal values, as two Box-Muller pairs, from one call of the generator.
std::array<double, 4> four_normals(uint64_t block, PhiloxKey key) {
  const auto bits = four_bits(block, key);
  std::array<double, 4> values{};
  for (size_t pair = 0; pair < 2; ++pair) {
    const double radius = std::sqrt(-2.0 * std::log(to_unit(bits[2 * pair])));
    const double angle = 2.0 * std::numbers::pi * to_unit(bits[2 * pair + 1]);
    values[2 * pair] = radius * std::cos(angle);
    values[2 * pair + 1] = radius * std::sin(angle);
  }
  return values;
}

struct Row {
  InitPreset preset;
  Json config;
};

// The texts are part of the program, so a fault in them is a fault of the build.
const std::vector<Row>& rows() {
  static const std::vector<Row> table = [] {
    std::vector<Row> list;
    for (const NamedText& family : family_presets()) {
      const std::string origin = "presets of " + std::string(family.name);
      const Json presets = parse_json(family.text, {}, origin);
      for (const auto& [name, row] : presets.items()) {
        list.push_back({{name, row.at("summary")}, row.at("config")});
      }
    }
    return list;
  }();
  return table;
}

Json token_or_null(int64_t token) {
  return token < 0 ? Json(nullptr) : Json(token);
}

}  // namespace

void fill_random(std::string_view name, const InitSpec& init, uint64_t seed, int64_t element_begin,
                 std::span<float> values) {
  LONGSHORE_CHECK(element_begin >= 0) << element_begin;
  if (init.kind == InitSpec::Kind::kZeros || init.kind == InitSpec::Kind::kOnes) {
    std::fill(values.begin(), values.end(), init.kind == InitSpec::Kind::kOnes ? 1.0f : 0.0f);
    return;
  }
  const uint64_t mixed = hash64(name) ^ (seed * 0x9E3779B97F4A7C15u);
  const PhiloxKey key{static_cast<uint32_t>(mixed), static_cast<uint32_t>(mixed >> 32)};
  const bool logarithm = init.kind == InitSpec::Kind::kLogUniform;
  const bool uniform = logarithm || init.kind == InitSpec::Kind::kUniform;
  const double factor = uniform ? init.bound : init.standard_deviation;
  const double middle = (init.bound + init.least) / 2.0, reach = (init.bound - init.least) / 2.0;
  std::array<double, 4> four{};
  for (size_t i = 0; i < values.size(); ++i) {
    const auto element = static_cast<uint64_t>(element_begin) + i;
    if (i == 0 || element % 4 == 0) {
      four = uniform ? four_uniforms(element / 4, key) : four_normals(element / 4, key);
    }
    const double value = four[element % 4];
    values[i] = static_cast<float>(logarithm ? std::log(middle + reach * value) : factor * value);
  }
}

const std::vector<InitPreset>& init_presets() {
  static const std::vector<InitPreset> presets = [] {
    std::vector<InitPreset> list;
    for (const Row& row : rows()) list.push_back(row.preset);
    return list;
  }();
  return presets;
}

std::string init_preset_config(std::string_view name, const InitPresetOptions& options) {
  LONGSHORE_CHECK(options.vocabulary >= 1) << options.vocabulary;
  std::vector<std::string> names;
  for (const Row& row : rows()) {
    names.emplace_back(row.preset.name);
    if (row.preset.name != name) continue;
    Json config = row.config;
    config["vocab_size"] = options.vocabulary;
    config["bos_token_id"] = token_or_null(options.bos_token);
    config["eos_token_id"] = token_or_null(options.eos_token);
    config["pad_token_id"] = token_or_null(options.pad_token);
    const auto inputs = config.find("vocab_size_per_layer_input");
    if (inputs != config.end()) *inputs = options.vocabulary;
    return config.dump(2) + "\n";
  }
  const std::string nearest = nearest_name(name, names);
  throw ConfigError("unknown preset '" + std::string(name) + "'" +
                    (nearest.empty() ? "" : ", did you mean '" + nearest + "'?") +
                    " (there are: " + joined(names, ", ") + ")");
}

}  // namespace longshore
