// The measurements of `check machine --rates`, from which plans forecast time. They
// use the program's own code and occupy the whole machine for a minute or two. Main thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/errors.h"
#include "device/copy_engine.h"
#include "device/cuda_runtime.h"
#include "device/device_memory.h"
#include "device/host_mapping.h"
#include "offload/forecast/machine_rates.h"
#include "offload/plan/machine.h"
#include "trainer/setup/known_rates.h"
#include "trainer/setup/run_setup.h"

namespace longshore {

inline constexpr Bytes kLittleDriveBytes = 8 * kGiB;
// Larger than the cache of any drive.
inline constexpr Bytes kFullDriveBytes = 256 * kGiB;

struct RateOptions {
  std::vector<std::string> drives;    // one directory per drive; empty: no drive is measured
  std::string files;                  // directory of models and checkpoints
  double seconds = 0.5;               // duration of each of about sixty measurements
  Bytes written = kLittleDriveBytes;  // upper bound per drive
  std::function<void(const std::string&)> say = [](const std::string&) {};
};

MachineRates measure_rates(const Machine& machine, const RateOptions& options);

// Measures the local machine and keeps the result for all later plans.
DescribedMachine measure_and_keep(const Machine& machine, const RateOptions& options,
                                  const KnownRates& known);

// CopiesBeside: a thread that copies to and from a GPU in turn, from the constructor until finish()
// or the destructor, as a step does during the update. All memory is allocated, touched and
// registered before the constructor returns, so that the thread only copies.
class CopiesBeside {
 public:
  // Copies `bytes` of host memory again and again. Throws as arenas and registrations do.
  CopiesBeside(int gpu, Bytes bytes);
  ~CopiesBeside();
  CopiesBeside(const CopiesBeside&) = delete;
  CopiesBeside& operator=(const CopiesBeside&) = delete;

  // Ends the copies. Throws Error if a copy failed; measurements made meanwhile are then invalid.
  void finish();
  // Returns the bytes copied so far; any thread.
  CopyEngine::Counts counts() const { return copies_->counts(); }

 private:
  void stop();
  void copy_until_stopped() noexcept;

  int gpu_;
  std::unique_ptr<DeviceArena> on_gpu_;
  HostMapping host_;
  HostRegistration registered_;  // destroyed before the mapping
  std::unique_ptr<CopyEngine> copies_;
  std::unique_ptr<Error> failure_;  // of the thread; read only after the thread has ended
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// Returns the share of all cores' time between two texts of /proc/stat that other programs used,
// or, as `steal`, other virtual machines. `own` is this process's CPU time in seconds in between. 0
// if the texts have no such data.
double share_of_others(const std::string& before, const std::string& after, double own,
                       double ticks_per_second);

// Other programs distort measurements. If they used more than a tenth of the processor, `take` runs
// again and the less disturbed result is returned. If both were disturbed, the source of the rates
// states the share and the difference between the two.
struct TakenRates {
  MachineRates rates;
  double others = 0.0;  // share_of_others during the measurement
};
MachineRates calmest_rates(const std::function<TakenRates()>& take,
                           const std::function<void(const std::string&)>& say);

// Returns the bytes that these measurements may write to a drive: at most half of the free space.
Bytes bytes_to_be_written(const std::string& directory, Bytes most);

struct TimedBytes {
  Bytes bytes = 0;
  double seconds = 0.0;
  double core_seconds = 0.0;  // CPU seconds of one rank
};

// Fits the line through both points: a start time and bytes per second. If noise hides the
// difference, bytes take at least a tenth of the longer time. Returns zeros for times that are not
// positive. A core share above 1 counts as 1.
CollectiveRate fit_collective(const TimedBytes& little, const TimedBytes& much);

// Measure parts of the rates. measure_group runs `ranks` threads over the CPU backend.
GroupRates measure_group(int32_t ranks, Bytes unit_bytes, int rounds);
ComputeRates measure_compute(DeviceKind device, DType dtype, double seconds);

// Returns the micro-batch sizes, in sequences, at which a run's units are measured, ascending: 1
// and the run's own, or, if that is 1, a second size of up to 4 that memory and step allow.
std::vector<int64_t> measured_micro_batches(const PlanInputs& inputs, const Machine& machine);

// Measures every distinct unit of the run's model with the run's shapes at those micro-batches and
// stores the results for its plans. Returns the number of units.
int measure_units(const MeasuredRun& setup, const KnownRates& known, double seconds);

}  // namespace longshore
