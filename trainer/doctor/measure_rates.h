// What `doctor --rates` measures: everything that a plan's time is made of, with the program's own
// code, on the machine that it runs on. Main thread; takes the whole machine for a minute or two.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "offload/forecast/machine_rates.h"
#include "offload/plan/machine.h"
#include "trainer/setup/known_rates.h"
#include "trainer/setup/run_setup.h"

namespace longshore {

inline constexpr Bytes kLittleDriveBytes = 8 * kGiB;
// Past the cache of any drive.
inline constexpr Bytes kFullDriveBytes = 256 * kGiB;

struct RateOptions {
  std::vector<std::string> drives;    // a directory on each; none: no drive is measured
  std::string files;                  // where models and checkpoints are
  double seconds = 0.5;               // of each of some sixty measurements
  Bytes written = kLittleDriveBytes;  // to each drive, at most
  std::function<void(const std::string&)> say = [](const std::string&) {};
};

MachineRates measure_rates(const Machine& machine, const RateOptions& options);

// The share of all cores' time between two texts of /proc/stat that others had: other programs, and
// with `steal` other machines of the host. `own`: seconds of a core that this process took
// meanwhile. 0 where the texts say nothing.
double share_of_others(const std::string& before, const std::string& after, double own,
                       double ticks_per_second);

// A measurement beside other programs is of what they left. It is taken again where they had more
// than a tenth of the processor, and the one that they disturbed least is returned; its source says
// how much they had and how far both were apart, for whoever reads a plan.
struct TakenRates {
  MachineRates rates;
  double others = 0.0;  // share_of_others while they were measured
};
MachineRates calmest_rates(const std::function<TakenRates()>& take,
                           const std::function<void(const std::string&)>& say);

// What the above may write to a drive, for whoever asks before: no more than half of what is free.
Bytes bytes_to_be_written(const std::string& directory, Bytes most);

struct TimedBytes {
  Bytes bytes = 0;
  double seconds = 0.0;
  double core_seconds = 0.0;  // of a core of the rank that it kept busy
};

// The line through both: a collective's start, and the bytes of a second after it. Where noise
// leaves next to nothing between them, bytes have a tenth of the longer time. Nothing of times
// that are none. More than one core at a time counts as one.
CollectiveRate fit_collective(const TimedBytes& little, const TimedBytes& much);

// Parts of it. So many threads of this process as ranks, over the CPU's backend.
GroupRates measure_group(int32_t ranks, Bytes unit_bytes, int rounds);
ComputeRates measure_compute(DeviceKind device, DType dtype, double seconds);

// The sequences of the micro-batches that a run's units are measured at, the least first: one and
// the run's own; where that is one too, up to four as far as memory and the step allow.
std::vector<int64_t> measured_micro_batches(const PlanInputs& inputs, const Machine& machine);

// Every distinct unit of the run's model, at the run's shapes and those micro-batches, kept for its
// plans. Returns how many were run.
int measure_units(const RunSetup& setup, const KnownRates& known, double seconds);

}  // namespace longshore
