// KnownRates: the cache of the rates that `check machine --rates` measured on this machine, of unit
// times, and of the ratios of measured to planned times of runs. Files are replaced atomically, so
// several processes may use them; an unreadable file counts as absent. Main thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "offload/forecast/machine_rates.h"
#include "offload/forecast/step_forecast.h"
#include "trainer/setup/run_setup.h"

namespace longshore {

class KnownRates {
 public:
  // `cache` is the user's cache directory. Processor, cores, memory and GPUs identify the machine.
  KnownRates(std::string cache, const Machine& machine);

  std::string path() const;  // file of the machine's rates
  // Returns the machine's rates, if known. Warns of a file that this version cannot parse.
  std::optional<DescribedMachine> find() const;
  // Stores the rates. Throws IoError if the file cannot be written.
  void keep(const DescribedMachine& machine) const;

  // Returns the measured times of a unit with this text, by positions; empty if it was not
  // measured. A file of a program that measured one micro-batch size gives one point.
  std::vector<UnitPoint> find_unit(const std::string& unit) const;
  void keep_unit(const std::string& unit, const std::vector<UnitPoint>& points) const;

  // Returns a hash that changes when the machine is measured again.
  std::string mark() const;

  // Return and update the ratios, by lane, of measured to planned time of runs with this text. The
  // text includes the rates that the plan used, because the factors correct only those rates. A
  // first run sets the factors; a later run replaces them with the geometric mean of old and new.
  LaneFactors find_factors(const std::string& run) const;
  void keep_factors(const std::string& run, const LaneFactors& factors) const;

 private:
  std::string file_of(const std::string& kind, const std::string& text) const;

  std::string directory_;
  std::string machine_;  // hash of the machine's identity
};

// Returns the rates of the local machine in the cache of the run.
KnownRates known_rates(const ReadRun& run);

}  // namespace longshore
