#include "trainer/setup/known_rates.h"

#include <cmath>
#include <utility>

#include "base/errors.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "trainer/data/run_prepare.h"
#include "trainer/device/run_environment.h"

namespace longshore {
namespace {

constexpr Bytes kMostFileBytes = kMiB;
// The version of unit and run files; the machine's file has its own version.
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

// The content of a unit or run file.
struct Kept {
  std::vector<int64_t> positions;  // positions of unit times; empty in run files
  std::vector<double> seconds;
};

std::optional<Kept> read_kept(const std::string& path, const std::string& text) {
  try {
    const Json json = Json::parse(read_own_file(path, kMostFileBytes));
    if (json.at("version") != kVersion || json.at("of") != text) return std::nullopt;
    Kept kept;
    kept.seconds = json.at("seconds").get<std::vector<double>>();
    for (const double number : kept.seconds) {
      if (!std::isfinite(number) || number < 0.0) return std::nullopt;
    }
    if (json.contains("positions")) kept.positions = json["positions"].get<std::vector<int64_t>>();
    return kept;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

bool are_of_points(const std::vector<int64_t>& positions) {
  if (positions.size() == 1) return positions[0] >= 0;
  return positions.size() == 2 && positions[0] > 0 && positions[1] > positions[0];
}

// Does nothing if the cache cannot be written.
void write_kept(const std::string& directory, const std::string& path, const std::string& text,
                const Kept& kept) {
  try {
    Json json({{"version", kVersion}, {"of", text}, {"seconds", kept.seconds}});
    if (!kept.positions.empty()) json["positions"] = kept.positions;
    make_directories(directory);
    replace_file(path, json.dump() + "\n");
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
        "the measured rates of this machine cannot be read, `longshore check machine --rates` "
        "measures it "
        "again: " +
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

std::vector<UnitPoint> KnownRates::find_unit(const std::string& unit) const {
  std::optional<Kept> kept = read_kept(file_of("unit", unit), unit);
  if (!kept) return {};
  if (kept->positions.empty()) kept->positions = {0};
  const std::vector<int64_t>& positions = kept->positions;
  if (!are_of_points(positions) || kept->seconds.size() != 2 * positions.size()) return {};
  std::vector<UnitPoint> points;
  for (size_t i = 0; i < positions.size(); ++i) {
    points.push_back({positions[i], {kept->seconds[2 * i], kept->seconds[2 * i + 1]}});
  }
  return points;
}

void KnownRates::keep_unit(const std::string& unit, const std::vector<UnitPoint>& points) const {
  Kept kept;
  for (const UnitPoint& point : points) {
    kept.positions.push_back(point.positions);
    kept.seconds.insert(kept.seconds.end(), {point.seconds.forward, point.seconds.backward});
  }
  write_kept(directory_, file_of("unit", unit), unit, kept);
}

std::string KnownRates::mark() const {
  try {
    return hash_text(hash64(read_own_file(path(), kMostFileBytes)));
  } catch (const Error&) {
    return "";
  }
}

LaneFactors KnownRates::find_factors(const std::string& run) const {
  LaneFactors factors = kNoCorrection;
  const std::optional<Kept> known = read_kept(file_of("run", run), run);
  if (!known || known->seconds.size() != factors.size()) return factors;
  for (size_t lane = 0; lane < factors.size(); ++lane) {
    if (known->seconds[lane] > 0.0) factors[lane] = known->seconds[lane];
  }
  return factors;
}

void KnownRates::keep_factors(const std::string& run, const LaneFactors& factors) const {
  const std::vector<double> before = read_kept(file_of("run", run), run).value_or(Kept{}).seconds;
  LaneFactors kept = factors;
  for (size_t lane = 0; before.size() == kept.size() && lane < kept.size(); ++lane) {
    if (before[lane] > 0.0) kept[lane] = std::sqrt(kept[lane] * before[lane]);
  }
  write_kept(directory_, file_of("run", run), run, {{}, {kept.begin(), kept.end()}});
}

KnownRates known_rates(const ReadRun& run) {
  return {cache_directory(run.config), run.here};
}

}  // namespace longshore
