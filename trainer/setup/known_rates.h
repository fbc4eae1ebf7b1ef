// KnownRates: what `doctor --rates` measured of this machine, and what runs took of what was
// planned for them, kept in the user's cache from one command to the next. Files are replaced
// whole, so any number of processes may read and write them. What cannot be read is as good as not
// there. Main thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "offload/forecast/machine_file.h"
#include "offload/forecast/step_forecast.h"
#include "offload/forecast/unit_seconds.h"
#include "trainer/setup/run_setup.h"

namespace longshore {

class KnownRates {
 public:
  // `cache`: the user's cache directory. The machine is known by its processor, cores, memory and
  // GPUs.
  KnownRates(std::string cache, const Machine& machine);

  std::string path() const;  // of the machine's file
  // Warns of a file that this version cannot read.
  std::optional<DescribedMachine> find() const;
  // IoError where it cannot be kept.
  void keep(const DescribedMachine& machine) const;

  // What was measured of a unit of that text, by positions; nothing where it never was. Files of
  // programs that measured one size of micro-batches give one point.
  std::vector<UnitPoint> find_unit(const std::string& unit) const;
  void keep_unit(const std::string& unit, const std::vector<UnitPoint>& points) const;

  // Changes when the machine is measured again.
  std::string mark() const;

  // What runs of this text took of what was planned, by lane; the text names the rates that the
  // plan was made with, or a factor that mends slow rates would spoil right ones. The first run's
  // count in full, each later one's go half of the way: one run on a busy machine does not spoil
  // them.
  LaneFactors find_factors(const std::string& run) const;
  void keep_factors(const std::string& run, const LaneFactors& factors) const;

 private:
  std::string file_of(const std::string& kind, const std::string& text) const;

  std::string directory_;
  std::string machine_;  // its hash
};

// For the machine and the cache of a run.
KnownRates known_rates(const ReadRun& run);

}  // namespace longshore
