#include "trainer/machine/measure_rates.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <exception>
#include <filesystem>
#include <optional>
#include <sstream>

#include "base/errors.h"
#include "base/file.h"
#include "base/log.h"
#include "base/measurement.h"
#include "base/mutex.h"
#include "base/texts.h"
#include "comm/store/store_secret.h"
#include "comm/store/store_server.h"
#include "comm/world/world.h"
#include "device/compute_threads.h"
#include "device/copy_speed.h"
#include "device/cuda_stream.h"
#include "nvme/probe/drive_probe.h"
#include "shard/state_format.h"
#include "trainer/bench/bench_optimizer.h"
#include "trainer/device/run_environment.h"

namespace longshore {
namespace {

using Clock = std::chrono::steady_clock;

constexpr Bytes kCopyBytes = 64 * kMiB;
constexpr Bytes kGroupBytes = 32 * kMiB;
constexpr Bytes kPinnedBytes = kGiB;
constexpr Bytes kLinkBytes = 32 * kMiB;  // of one copy to or from a GPU
constexpr int kGroupRounds = 5, kHurriedGroupRounds = 20;
// Collectives are measured with few and many bytes, each with computation in between.
constexpr Bytes kLittleBytes = 4 * kKiB;
constexpr int kLittleRounds = 100;
constexpr double kWorkBetween = 2e-3;  // seconds
// Share of a collective's time that its bytes take at least, if noise hides the difference.
constexpr double kLeastMoving = 0.1;
constexpr double kLeastShare = 0.01;  // minimum share of a core
constexpr int64_t kUpdateElements = int64_t{1} << 24;
constexpr int64_t kLeastUpdateElements = int64_t{1} << 20;
constexpr Bytes kDriveFile = kGiB;
// Below this many seconds per measurement, files are small.
constexpr double kHurried = 0.1;

// Returns the median time of `work`, repeated for about `seconds`, without the first call.
template <typename Work>
double median_seconds(double seconds, const Work& work) {
  work();
  std::vector<double> taken;
  const Clock::time_point begin = Clock::now();
  while (taken.size() < 3 || (seconds_since(begin) < seconds && taken.size() < 100)) {
    const Clock::time_point start = Clock::now();
    work();
    taken.push_back(seconds_since(start));
  }
  return median_of(taken);
}

double measure_copy(double seconds) {
  const HostMapping from(kCopyBytes, "a measurement"), to(kCopyBytes, "a measurement");
  std::memset(from.bytes().data(), 1, from.bytes().size());
  return static_cast<double>(kCopyBytes) / median_seconds(seconds, [&] {
           std::memcpy(to.bytes().data(), from.bytes().data(), from.bytes().size());
         });
}

// Measures memory that is mapped, touched and registered with a GPU, if any, like the arena.
double measure_pin(double seconds) {
  const Bytes bytes = seconds < kHurried ? kPinnedBytes / 16 : kPinnedBytes;
  return static_cast<double>(bytes) / median_seconds(0.0, [bytes] {
           const HostMapping mapping(bytes, "a measurement");
           std::memset(mapping.bytes().data(), 0, mapping.bytes().size());
           const HostRegistration registered(mapping.bytes());
         });
}

// A GPU's copies run during every update of a run, so updates are measured during copies.
void measure_updates(const Machine& machine, const RateOptions& options, MachineRates& rates) {
  std::optional<CopiesBeside> copies;
  if (!machine.gpus.empty()) {
    copies.emplace(0, options.seconds < kHurried ? kLinkBytes : kPinnedBytes);
  }
  BenchOptimizerOptions bench;
  bench.threads = {1};
  if (machine.physical_cores > 1) bench.threads.push_back(machine.physical_cores);
  bench.elements = options.seconds < kHurried ? kLeastUpdateElements : kUpdateElements;
  bench.rounds = options.seconds < kHurried ? 3 : 9;
  for (const OptimizerFigures& figures : measure_optimizer(bench)) {
    rates.dram = std::max(rates.dram, figures.bound_bytes_per_second);
    const auto found = std::ranges::find(rates.updates, figures.format, &UpdateRate::format);
    UpdateRate& rate =
        found == rates.updates.end() ? rates.updates.emplace_back(figures.format) : *found;
    rate.bytes = std::max(rate.bytes, figures.bytes_per_second);
    if (figures.threads == 1) rate.one_thread = figures.bytes_per_second;
  }
  if (copies) copies->finish();
}

LinkRates measure_link() {
  LinkRates link;
  for (const CopySpeed& speed : measure_copy_speeds(0, {kLinkBytes}, 5)) {
    (speed.direction == "h2d" ? link.to_device : link.to_host) = speed.gb_per_second * kGiga;
  }
  const auto [up, down] = measure_copies_both_ways(0, kLinkBytes, 5);
  link.to_device_both = up * kGiga;
  link.to_host_both = down * kGiga;
  return link;
}

WorldOptions group_options() {
  WorldOptions options;
  options.timeout = std::chrono::seconds(60);
  options.backend = CommBackend::kAuto;
  return options;
}

// Returns the CPU time of the process or of the calling thread, depending on `clock`.
double core_seconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// WorkBetween: simulates the computation between collectives and counts its CPU time.
class WorkBetween {
 public:
  void run() {
    const double before = core_seconds(CLOCK_THREAD_CPUTIME_ID);
    const Clock::time_point begin = Clock::now();
    while (seconds_since(begin) < kWorkBetween) {
    }
    taken_ += core_seconds(CLOCK_THREAD_CPUTIME_ID) - before;
  }
  // Returns the CPU seconds of everything else in the process so far.
  double others() const { return core_seconds(CLOCK_PROCESS_CPUTIME_ID) - taken_; }

 private:
  std::atomic<double> taken_{0.0};  // sum over all ranks
};

// gather, reduce-scatter, all-reduce
using CollectiveTimes = std::array<TimedBytes, 3>;

// Measures one rank's mean seconds for each of the three operations. Each follows computation, as
// in a step, because waking threads on busy cores takes time.
CollectiveTimes time_collectives(World& world, Bytes bytes, int rounds, WorkBetween& work) {
  const auto size = world.ranks().size;
  const auto elements = static_cast<size_t>(bytes / 4 / size * size);
  std::vector<float> values(elements, 1.0F);
  std::vector<std::byte> scratch(
      static_cast<size_t>(reduce_scratch_bytes(static_cast<int64_t>(elements), DType::kF32, size)));
  const std::span<float> floats(values);
  const OpLabel label{"a measurement", {}};
  const auto time = [&](const auto& start) {
    double taken = 0.0;
    world.all().barrier(label).wait();
    const double before = work.others();
    for (int round = 0; round <= rounds; ++round) {
      work.run();
      const Clock::time_point begin = Clock::now();
      start().wait();
      if (round > 0) taken += seconds_since(begin);
    }
    world.all().barrier(label).wait();
    return TimedBytes{bytes, taken / rounds, (work.others() - before) / (size * (rounds + 1))};
  };
  return {time([&] { return world.all().all_gather({std::as_writable_bytes(floats)}, label); }),
          time([&] { return world.all().reduce_scatter({floats}, DType::kF32, scratch, label); }),
          time([&] { return world.all().all_reduce({floats}, DType::kF32, scratch, label); })};
}

TimedBytes slower_of(const TimedBytes& one, const TimedBytes& other) {
  return one.seconds < other.seconds ? other : one;
}

DriveRates measure_drive(const std::string& directory, const RateOptions& options, Bytes& written) {
  const Bytes most = bytes_to_be_written(directory, options.written);
  const bool full = most > kLittleDriveBytes;
  Bytes file = options.seconds < kHurried ? 0 : kDriveFile;
  if (full) file = kLittleDriveBytes;
  DriveProbe probe(directory, std::min(file, most / 8), IoEngine::kAuto);
  const DriveSettings settings;
  const auto rate = [](const DriveSpeed& speed) { return speed.gb_per_second * kGiga; };
  const auto core_share = [](const DriveSpeed& speed) {
    return std::min(1.0, speed.core_percent_per_gb / 100.0 * speed.gb_per_second);
  };
  DriveRates rates;
  rates.directory = directory;
  // The rest of the budget is written in halves; a full measurement first fills the cache.
  const Bytes part = std::max<Bytes>(0, most - probe.written()) / 2;
  const double seconds = full ? 3600.0 : options.seconds;
  if (full) probe.measure(BlockOp::Kind::kWrite, settings, seconds, part);
  const Bytes last = full ? part / 2 : part;
  const DriveSpeed read = probe.measure(BlockOp::Kind::kRead, settings, options.seconds);
  const DriveSpeed write = probe.measure(BlockOp::Kind::kWrite, settings, seconds, last);
  rates.read = rate(read);
  rates.written = rate(write);
  rates.read_core_share = core_share(read);
  rates.written_core_share = core_share(write);
  const auto [reads, writes] = probe.measure_both(settings, seconds, last);
  rates.read_both = rate(reads);
  rates.written_both = rate(writes);
  written = probe.written();
  return rates;
}

}  // namespace

CopiesBeside::CopiesBeside(int gpu, Bytes bytes)
    : gpu_(gpu),
      on_gpu_(make_cuda_arena(std::min(bytes, kLinkBytes), gpu)),
      host_(bytes, "the copies beside the update") {
  // Touched pages: registering them then moves none.
  std::memset(host_.bytes().data(), 1, host_.bytes().size());
  registered_ = HostRegistration(host_.bytes());
  copies_ = make_cuda_copy_engine(gpu);
  thread_ = std::thread([this] { copy_until_stopped(); });
}

CopiesBeside::~CopiesBeside() {
  stop();
}

void CopiesBeside::stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

void CopiesBeside::copy_until_stopped() noexcept {
  try {
    adopt_cuda_stream(gpu_, StreamPriority::kHigh);
    const std::span<std::byte> there = on_gpu_->bytes(), all = host_.bytes();
    size_t begin = 0;
    do {
      const size_t count = std::min(there.size(), all.size() - begin);
      copies_->to_device(there.first(count), all.subspan(begin, count));
      copies_->finish();
      copies_->to_host(all.subspan(begin, count), there.first(count));
      copies_->finish();
      begin = (begin + count) % all.size();
    } while (!stop_);
  } catch (const std::exception& error) {
    const auto* known = dynamic_cast<const Error*>(&error);
    failure_ = std::make_unique<Error>(
        known != nullptr ? known->exit_code() : ExitCode::kFailure,
        "the copies beside the update could not be measured: " + std::string(error.what()));
  }
}

void CopiesBeside::finish() {
  stop();
  if (failure_) throw Error(*failure_);
}

CollectiveRate fit_collective(const TimedBytes& little, const TimedBytes& much) {
  if (!(much.seconds > 0.0) || much.bytes <= little.bytes) return {};
  const double moving = std::max(much.seconds - little.seconds, kLeastMoving * much.seconds);
  CollectiveRate fitted;
  fitted.bytes = static_cast<double>(much.bytes - little.bytes) / moving;
  fitted.start_seconds =
      std::max(0.0, much.seconds - static_cast<double>(much.bytes) / fitted.bytes);
  fitted.start_core_seconds = std::clamp(little.core_seconds, 0.0, fitted.start_seconds);
  fitted.core_share =
      std::clamp((much.core_seconds - little.core_seconds) / moving, kLeastShare, 1.0);
  return fitted;
}

GroupRates measure_group(int32_t ranks, Bytes unit_bytes, int rounds) {
  const std::string secret = make_store_secret();
  const StoreServer server({.secret = secret});
  CollectiveTimes much = {}, little = {};
  WorkBetween work;
  Mutex mutex;
  std::exception_ptr failure;
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        RankInfo info;
        info.rank = info.local_rank = rank;
        info.size = info.local_size = ranks;
        info.launcher = "launch";
        info.store_host = "127.0.0.1";
        info.store_port = server.port();
        info.secret = secret;
        info.agent_store = true;
        const auto world = World::connect(info, group_options());
        const CollectiveTimes my_much = time_collectives(*world, unit_bytes, rounds, work);
        const CollectiveTimes my_little =
            time_collectives(*world, kLittleBytes, kLittleRounds, work);
        world->all().barrier({"the end of a measurement", {}}).wait();
        const MutexLock lock(mutex);
        for (size_t i = 0; i < much.size(); ++i) {
          much[i] = slower_of(much[i], my_much[i]);
          little[i] = slower_of(little[i], my_little[i]);
        }
      } catch (...) {
        const MutexLock lock(mutex);
        failure = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
  const auto rate = [&](size_t i) { return fit_collective(little[i], much[i]); };
  return {DeviceKind::kCpu, ranks, rate(0), rate(1), rate(2)};
}

Bytes bytes_to_be_written(const std::string& directory, Bytes most) {
  std::error_code error;
  const auto space = std::filesystem::space(directory, error);
  return error ? 0 : std::min(most, static_cast<Bytes>(space.available / 2));
}

namespace {

// Ticks of all cores since boot.
struct CoreTimes {
  double busy = 0.0, all = 0.0;
};

// Parses the first line: user, nice, system, idle, iowait, irq, softirq, steal. The first two
// already include guest time.
CoreTimes core_times_of(const std::string& stat) {
  constexpr int kNumbers = 8, kIdle = 3, kWaiting = 4;
  std::istringstream words(stat);
  std::string name;
  words >> name;
  CoreTimes times;
  double ticks = 0.0;
  for (int i = 0; i < kNumbers && words >> ticks; ++i) {
    times.all += ticks;
    if (i != kIdle && i != kWaiting) times.busy += ticks;
  }
  return times;
}

std::string read_stat() {
  return first_line("/proc/stat").value_or("");
}

std::string percent_of(double share) {
  return std::to_string(std::lround(100.0 * share)) + " %";
}

// Returns the largest ratio between two measurements of processor and memory.
double ratio_of(const MachineRates& one, const MachineRates& other) {
  double most = 1.0;
  const auto compare = [&most](double a, double b) {
    if (a > 0.0 && b > 0.0) most = std::max({most, a / b, b / a});
  };
  compare(one.copy, other.copy);
  compare(one.dram, other.dram);
  for (size_t i = 0; i < std::min(one.updates.size(), other.updates.size()); ++i) {
    compare(one.updates[i].bytes, other.updates[i].bytes);
  }
  for (size_t i = 0; i < std::min(one.compute.size(), other.compute.size()); ++i) {
    compare(product_flops(one.compute[i], 1024.0), product_flops(other.compute[i], 1024.0));
  }
  return most;
}

MachineRates take_rates(const Machine& machine, const RateOptions& options) {
  MachineRates rates;
  rates.source = "measured by longshore on " + today();
  options.say("memory");
  rates.copy = measure_copy(options.seconds);
  rates.pin = measure_pin(options.seconds);
  if (!machine.gpus.empty()) {
    options.say("the link to the GPU");
    rates.link = measure_link();
  }
  options.say("the update in every state format");
  measure_updates(machine, options, rates);
  std::vector<std::string> directories = options.drives;
  const bool of_drives = std::ranges::find(directories, options.files) != directories.end();
  if (!options.files.empty() && !of_drives) directories.push_back(options.files);
  for (const std::string& directory : directories) {
    Bytes written = 0;
    options.say("the drive of " + directory);
    const DriveRates drive = measure_drive(directory, options, written);
    options.say("  " + format_bytes(written) + " were written to it");
    if (directory == options.files) {
      rates.files_read = drive.read;
      rates.files_written = drive.written;
    }
    const bool asked = std::ranges::find(options.drives, directory) != options.drives.end();
    if (asked && rates.drive(directory) == nullptr) rates.drives.push_back(drive);
  }
  for (const int32_t ranks : {2, 4, 8}) {
    options.say("collectives of " + std::to_string(ranks) + " ranks");
    const bool hurried = options.seconds < kHurried;
    rates.groups.push_back(measure_group(ranks, hurried ? kMiB : kGroupBytes,
                                         hurried ? kHurriedGroupRounds : kGroupRounds));
  }
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    options.say(dtype == DType::kF32 ? "computation in fp32" : "computation in bf16");
    rates.compute.push_back(measure_compute(DeviceKind::kCpu, dtype, options.seconds));
    if (machine.gpus.empty()) continue;
    rates.compute.push_back(measure_compute(DeviceKind::kCuda, dtype, options.seconds));
  }
  return rates;
}

}  // namespace

double share_of_others(const std::string& before, const std::string& after, double own,
                       double ticks_per_second) {
  const CoreTimes first = core_times_of(before), last = core_times_of(after);
  const double all = (last.all - first.all) / ticks_per_second;
  if (!(all > 0.0)) return 0.0;
  const double busy = (last.busy - first.busy) / ticks_per_second;
  return std::clamp((busy - own) / all, 0.0, 1.0);
}

MachineRates calmest_rates(const std::function<TakenRates()>& take,
                           const std::function<void(const std::string&)>& say) {
  constexpr double kCalm = 0.1;
  TakenRates best = take();
  double spread = 1.0;
  if (best.others > kCalm) {
    say("other programs had " + percent_of(best.others) +
        " of the processor meanwhile: measuring everything again");
    TakenRates again = take();
    spread = ratio_of(best.rates, again.rates);
    if (again.others < best.others) best = std::move(again);
  }
  if (best.others <= kCalm) return std::move(best.rates);
  const std::string apart = formatted("%.1f", spread);
  best.rates.source += ", unsure: other programs had " + percent_of(best.others) +
                       " of the processor, and two tries differed by up to " + apart +
                       " times; measure again when the machine is idle";
  return std::move(best.rates);
}

MachineRates measure_rates(const Machine& machine, const RateOptions& options) {
  return calmest_rates(
      [&] {
        const std::string before = read_stat();
        const double own = core_seconds(CLOCK_PROCESS_CPUTIME_ID);
        TakenRates taken{.rates = take_rates(machine, options)};
        taken.others =
            share_of_others(before, read_stat(), core_seconds(CLOCK_PROCESS_CPUTIME_ID) - own,
                            static_cast<double>(::sysconf(_SC_CLK_TCK)));
        return taken;
      },
      options.say);
}

DescribedMachine measure_and_keep(const Machine& machine, const RateOptions& options,
                                  const KnownRates& known) {
  set_compute_threads(machine.physical_cores);
  DescribedMachine described;
  described.name = machine.cpu_model;
  described.machine = machine;
  // The memory that is free now says nothing about a later run.
  described.machine.ram_available = described.machine.ram_total;
  described.rates = measure_rates(machine, options);
  described.sources = {described.rates.source};
  described.program = build_id();
  known.keep(described);
  log_info("saved in " + known.path() + "; plans use it from now on");
  return described;
}

}  // namespace longshore
