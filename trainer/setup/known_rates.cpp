#include "trainer/setup/known_rates.h"

#include <cmath>
#include <utility>

#include "base/errors.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "base/own_file.h"
#include "trainer/data/run_prepare.h"
#include "trainer/device/run_environment.h"

namespace longshore {
namespace {

constexpr Bytes kMostFileBytes = kMiB;
// Of the files of units and runs; the machine's file has its own.
constexpr int kVersion = 1;

std::string identity_of(const Machine& machine) {
  std::string text = machine.cpu_model + "\n" + std::to_string(machine.logical_cores) + " " +
                     std::to_string(machine.physical_cores) + " " +
                     std::string(name_of(machine.simd)) + "\n" +
                     std::to_string(machine.ram_total / kGiB) + "\n";
  for (const CudaDevice& gpu : machine.gpus) {
    text += gpu.name + " " + std::to_string(gpu.memory_bytes) + "\n";
  }
  return text;
}

std::optional<std::vector<double>> read_numbers(const std::string& path, const std::string& text) {
  try {
    const Json json = Json::parse(read_own_file(path, kMostFileBytes));
    if (json.at("version") != kVersion || json.at("of") != text) return std::nullopt;
    auto numbers = json.at("seconds").get<std::vector<double>>();
    for (const double number : numbers) {
      if (!std::isfinite(number) || number < 0.0) return std::nullopt;
    }
    return numbers;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

// A cache that cannot be written keeps nothing.
void write_numbers(const std::string& directory, const std::string& path, const std::string& text,
                   const std::vector<double>& numbers) {
  try {
    make_directories(directory);
    replace_file(path,
                 Json({{"version", kVersion}, {"of", text}, {"seconds", numbers}}).dump() + "\n");
  } catch (const Error&) {
  }
}

}  // namespace

KnownRates::KnownRates(std::string cache, const Machine& machine)
    : directory_(std::move(cache) + "/machines"),
      machine_(hash_text(hash64(identity_of(machine)))) {}

std::string KnownRates::path() const {
  return directory_ + "/" + machine_ + ".toml";
}

std::optional<DescribedMachine> KnownRates::find() const {
  try {
    DescribedMachine machine = parse_machine(read_own_file(path(), kMostFileBytes), path());
    if (machine.program != build_id()) machine.rates.source += ", by another build of the program";
    return machine;
  } catch (const ConfigError& error) {
    log_warning(
        "what was measured of this machine cannot be read, `longshore doctor --rates` "
        "measures it again: " +
        std::string(error.what()));
    return std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
}

void KnownRates::keep(const DescribedMachine& machine) const {
  make_directories(directory_);
  replace_file(path(), machine_to_toml(machine));
}

std::string KnownRates::file_of(const std::string& kind, const std::string& text) const {
  return directory_ + "/" + machine_ + "-" + kind + "-" + hash_text(hash64(text)) + ".json";
}

std::optional<KnownRates::UnitSeconds> KnownRates::find_unit(const std::string& unit) const {
  const auto numbers = read_numbers(file_of("unit", unit), unit);
  if (!numbers || numbers->size() != 2) return std::nullopt;
  return UnitSeconds{(*numbers)[0], (*numbers)[1]};
}

void KnownRates::keep_unit(const std::string& unit, const UnitSeconds& seconds) const {
  write_numbers(directory_, file_of("unit", unit), unit, {seconds.forward, seconds.backward});
}

LaneFactors KnownRates::find_factors(const std::string& run) const {
  LaneFactors factors = kNoCorrection;
  const auto numbers = read_numbers(file_of("run", run), run);
  if (!numbers || numbers->size() != factors.size()) return factors;
  for (size_t lane = 0; lane < factors.size(); ++lane) {
    if ((*numbers)[lane] > 0.0) factors[lane] = (*numbers)[lane];
  }
  return factors;
}

void KnownRates::keep_factors(const std::string& run, const LaneFactors& factors) const {
  const auto before = read_numbers(file_of("run", run), run);
  LaneFactors kept = factors;
  for (size_t lane = 0; before && before->size() == kept.size() && lane < kept.size(); ++lane) {
    if ((*before)[lane] > 0.0) kept[lane] = std::sqrt(kept[lane] * (*before)[lane]);
  }
  write_numbers(directory_, file_of("run", run), run, {kept.begin(), kept.end()});
}

KnownRates known_rates(const RunSetup& setup) {
  return {cache_directory(setup.config), setup.here};
}

}  // namespace longshore
