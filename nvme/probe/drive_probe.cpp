#include "nvme/probe/drive_probe.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <linux/nvme_ioctl.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <future>
#include <limits>
#include <numeric>
#include <vector>

#include "base/child_process.h"
#include "base/errors.h"
#include "base/file.h"
#include "base/json.h"
#include "base/measurement.h"

namespace longshore {
namespace {

constexpr Bytes kMaxInFlight = 128 * kMiB;
// Two transfers alternate, so that the queue never runs dry between them.
constexpr Bytes kWindowBytes = 2 * kMaxInFlight;

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

constexpr Bytes kProbeFileBytes = 256 * kMiB;
constexpr Bytes kMaxInFlightBytes = 128 * kMiB;
constexpr JsonLimits kTuningLimits{.max_bytes = kBlockBytes, .max_values = 16};
// Nine settings in two directions, plus both directions of the chosen one.
constexpr double kMeasurements = 20.0;
// Speeds are rounded to quarters of the slowest, because so short a probe is not more precise.
constexpr double kSharesOfSlowest = 4.0;
constexpr double kMaxShare = 64.0;

std::string path_in(const std::string& directory) {
  return directory + "/drive_tuning.json";
}

bool makes_sense(const DriveTuning& tuning) {
  const Bytes chunk = tuning.settings.chunk_bytes;
  return chunk >= kBlockBytes && chunk % kBlockBytes == 0 && chunk <= 16 * kMiB &&
         tuning.settings.depth >= 1 && tuning.settings.depth <= kMaxInFlightBytes / chunk &&
         std::isfinite(tuning.gb_per_second) && tuning.gb_per_second > 0.0;
}

constexpr JsonLimits kFioLimits = {.max_bytes = kMiB};

}  // namespace

DriveSpeed median_of(const std::vector<DriveSpeed>& speeds) {
  if (speeds.empty()) return {};
  std::vector<double> rates;
  std::vector<double> costs;
  for (const DriveSpeed& speed : speeds) {
    rates.push_back(speed.gb_per_second);
    costs.push_back(speed.core_percent_per_gb);
  }
  return {median_of(rates), median_of(costs)};
}

DriveProbe::DriveProbe(const std::string& directory, Bytes file_bytes, IoEngine engine)
    : path_(directory + "/longshore-bench.tmp"),
      file_bytes_(align_up(std::max(file_bytes, kWindowBytes), kWindowBytes)),
      engine_(engine),
      window_(kWindowBytes, "I/O window") {
  // Drives cannot compress these pseudo-random bytes.
  uint64_t value = 88172645463325252u;
  for (size_t i = 0; i < window_.bytes().size(); i += sizeof(value)) {
    value ^= value << 13;
    value ^= value >> 7;
    value ^= value << 17;
    std::memcpy(window_.bytes().data() + i, &value, sizeof(value));
  }
  try {
    OpenDrive drive({.file = {.path = path_, .size_bytes = file_bytes_}, .engine = engine_});
    kind_ = drive.kind();
    for (Bytes at = 0; at < file_bytes_; at += kWindowBytes) drive.write(at, window_.bytes());
    drive.flush();
    written_ = file_bytes_;
  } catch (...) {
    unlink(path_.c_str());
    throw;
  }
}

DriveProbe::~DriveProbe() {
  unlink(path_.c_str());
}

// The result of one direction.
struct DriveProbe::Stream {
  Bytes moved = 0;
  double seconds = 0.0;
  double gb_per_second() const { return static_cast<double>(moved) * 1e-9 / seconds; }
};

DriveProbe::Stream DriveProbe::stream(BlockOp::Kind kind, const DriveSettings& settings,
                                      double seconds, Bytes most,
                                      std::span<std::byte> window) const {
  OpenDrive drive({.file = {.path = path_},
                   .chunk_bytes = settings.chunk_bytes,
                   .depth = settings.depth,
                   .engine = engine_,
                   .memory = {window}});
  const Bytes half = std::min(kWindowBytes / 2, settings.chunk_bytes * settings.depth);
  std::array<Transfer, 2> transfers;
  Bytes position = 0, started = 0;
  const auto start = [&](size_t i) {
    if (position + half > file_bytes_) position = 0;
    transfers[i] = {};
    transfers[i].kind = kind;
    transfers[i].offset = position;
    transfers[i].memory =
        window.subspan(i * static_cast<size_t>(kWindowBytes / 2), static_cast<size_t>(half));
    position += half;
    started += half;
    drive.start(transfers[i]);
  };
  const auto begin = std::chrono::steady_clock::now();
  start(0);
  start(1);
  for (size_t i = 0; seconds_since(begin) < seconds && started < most; i = 1 - i) {
    drive.wait(transfers[i]);
    start(i);
  }
  for (Transfer& transfer : transfers) drive.wait(transfer);
  if (kind == BlockOp::Kind::kWrite) drive.flush();
  return {started, seconds_since(begin)};
}

DriveSpeed DriveProbe::measure(BlockOp::Kind kind, const DriveSettings& settings, double seconds,
                               Bytes most) {
  const double cpu_before = cpu_seconds();
  const Stream done = stream(kind, settings, seconds, most, window_.bytes());
  if (kind == BlockOp::Kind::kWrite) written_ += done.moved;
  const double cores = (cpu_seconds() - cpu_before) / done.seconds;
  return {done.gb_per_second(), 100.0 * cores / done.gb_per_second()};
}

std::pair<DriveSpeed, DriveSpeed> DriveProbe::measure_both(const DriveSettings& settings,
                                                           double seconds, Bytes most) {
  const HostMapping other(kWindowBytes, "I/O window");
  auto reads = std::async(std::launch::async, [&] {
    return stream(BlockOp::Kind::kRead, settings, seconds, most, other.bytes());
  });
  const Stream writes = stream(BlockOp::Kind::kWrite, settings, seconds, most, window_.bytes());
  written_ += writes.moved;
  return {{reads.get().gb_per_second(), 0.0}, {writes.gb_per_second(), 0.0}};
}

DriveSettings DriveProbe::find_settings(double seconds) {
  DriveSettings best;
  double best_rate = 0.0;
  for (const Bytes chunk : {kMiB, 2 * kMiB, 4 * kMiB}) {
    for (const Bytes in_flight : {32 * kMiB, 64 * kMiB, kMaxInFlight}) {
      const DriveSettings settings = {chunk, static_cast<int>(in_flight / chunk)};
      const double rate = std::min(measure(BlockOp::Kind::kRead, settings, seconds).gb_per_second,
                                   measure(BlockOp::Kind::kWrite, settings, seconds).gb_per_second);
      // A deeper queue must be 2 % faster to justify its memory.
      if (rate <= best_rate * 1.02) continue;
      best_rate = rate;
      best = settings;
    }
  }
  return best;
}

std::optional<DriveTuning> read_drive_tuning(const std::string& directory) {
  try {
    const Json json = read_json_file(path_in(directory), kTuningLimits);
    const DriveTuning tuning = {{json.at("chunk_bytes").get<Bytes>(), json.at("depth").get<int>()},
                                json.at("gb_per_second").get<double>()};
    if (makes_sense(tuning)) return tuning;
  } catch (const Error&) {
  } catch (const Json::exception&) {
  }
  return std::nullopt;
}

DriveTuning tune_drive(const std::string& directory, IoEngine engine, double seconds) {
  make_directories(directory);
  const auto begin = std::chrono::steady_clock::now();
  DriveProbe probe(directory, kProbeFileBytes, engine);
  const double spent = seconds_since(begin);
  DriveTuning tuning;
  tuning.gb_per_second = static_cast<double>(kProbeFileBytes) * 1e-9 / spent;
  const double each = (seconds - spent) / kMeasurements;
  if (each > 0.01) {
    tuning.settings = probe.find_settings(each);
    const auto rate = [&](BlockOp::Kind kind) {
      return probe.measure(kind, tuning.settings, each).gb_per_second;
    };
    tuning.gb_per_second = std::min(rate(BlockOp::Kind::kRead), rate(BlockOp::Kind::kWrite));
  }
  const Json json = {{"chunk_bytes", tuning.settings.chunk_bytes},
                     {"depth", tuning.settings.depth},
                     {"gb_per_second", tuning.gb_per_second}};
  write_file_durably(path_in(directory), json.dump() + "\n");
  return tuning;
}

TunedDrives combine(std::span<const DriveTuning> drives) {
  LONGSHORE_CHECK(!drives.empty() && drives.size() <= static_cast<size_t>(kMaxDrives));
  TunedDrives tuned;
  Bytes in_flight = 0;
  double slowest = drives.front().gb_per_second;
  tuned.geometry.chunk_bytes = 0;
  for (const DriveTuning& drive : drives) {
    const DriveSettings& settings = drive.settings;
    tuned.geometry.chunk_bytes = std::max(tuned.geometry.chunk_bytes, settings.chunk_bytes);
    in_flight = std::max(in_flight, settings.chunk_bytes * settings.depth);
    slowest = std::min(slowest, drive.gb_per_second);
  }
  tuned.depth = static_cast<int>(std::max<Bytes>(1, in_flight / tuned.geometry.chunk_bytes));
  uint32_t divisor = 0;
  for (size_t i = 0; i < drives.size(); ++i) {
    const double share = std::round(kSharesOfSlowest * drives[i].gb_per_second / slowest);
    tuned.geometry.weights[i] = static_cast<uint32_t>(std::min(share, kMaxShare));
    divisor = std::gcd(divisor, tuned.geometry.weights[i]);
  }
  for (size_t i = 0; i < drives.size(); ++i) tuned.geometry.weights[i] /= divisor;
  return tuned;
}

bool fio_is_installed() {
  return run_child({"fio", "--version"}).good();
}

std::optional<DriveSpeed> measure_fio(const std::string& path, BlockOp::Kind kind,
                                      const std::string& engine, const DriveSettings& settings,
                                      double seconds) {
  const std::string direction(name_of(kind));
  // The file may be on a read-only file system.
  const std::string output = (std::filesystem::temp_directory_path() /
                              ("longshore_fio_" + std::to_string(getpid()) + ".json"))
                                 .string();
  std::vector<std::string> arguments = {
      "fio",
      "--name=longshore",
      "--filename=" + path,
      "--direct=1",
      "--ioengine=" + engine,
      "--rw=" + direction,
      "--bs=" + std::to_string(settings.chunk_bytes),
      "--iodepth=" + std::to_string(settings.depth),
      "--time_based",
      "--runtime=" + std::to_string(static_cast<int64_t>(std::ceil(seconds * 1000))) + "ms",
      "--output-format=json",
      "--output=" + output};
  if (engine == "io_uring") {
    arguments.insert(arguments.end(), {"--fixedbufs=1", "--registerfiles=1"});
  }
  arguments.push_back(kind == BlockOp::Kind::kWrite ? "--end_fsync=1" : "--readonly");
  std::optional<DriveSpeed> speed;
  if (run_child(arguments).good()) {
    try {
      const Json job = read_json_file(output, kFioLimits).at("jobs").at(0);
      const double rate = job.at(direction).at("bw_bytes").get<double>() * 1e-9;
      const double percent = job.at("usr_cpu").get<double>() + job.at("sys_cpu").get<double>();
      if (rate > 0.0) speed = DriveSpeed{rate, percent / rate};
    } catch (const std::exception&) {
      speed.reset();  // a release with another format counts as a failure
    }
  }
  unlink(output.c_str());
  return speed;
}

namespace {

// Offsets in the log, and the unit of the drive's counter: 1000 sectors of 512 bytes.
constexpr size_t kPercentageUsedAt = 5;
constexpr size_t kDataUnitsWrittenAt = 48;
constexpr Bytes kDataUnitBytes = 512'000;
constexpr uint8_t kGetLogPage = 0x02;
constexpr uint32_t kSmartLogPage = 0x02;
constexpr uint32_t kAllNamespaces = 0xffffffff;

// Returns "/dev/nvme0n1" for a directory on it or its partitions; empty for anything else.
std::string nvme_device_of(const std::string& directory) {
  std::error_code failed;
  std::filesystem::path existing = std::filesystem::absolute(directory, failed);
  while (!failed && !std::filesystem::exists(existing, failed) && existing.has_relative_path()) {
    existing = existing.parent_path();
  }
  struct stat status{};
  if (stat(existing.c_str(), &status) != 0) return {};
  const std::string link = "/sys/dev/block/" + std::to_string(major(status.st_dev)) + ":" +
                           std::to_string(minor(status.st_dev));
  const std::filesystem::path block = std::filesystem::canonical(link, failed);
  if (failed) return {};
  for (std::filesystem::path at = block; at.has_relative_path(); at = at.parent_path()) {
    const std::string name = at.filename().string();
    const bool partition = std::filesystem::exists(at / "partition", failed);
    if (name.starts_with("nvme") && !partition && std::filesystem::exists(at / "queue", failed)) {
      return "/dev/" + name;
    }
  }
  return {};
}

namespace fs = std::filesystem;

Bytes held_by_state_files(const std::string& directory) {
  Bytes bytes = 0;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    struct stat status{};
    if (entry.path().extension() != ".state") continue;
    if (::lstat(entry.path().c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    bytes += status.st_blocks * 512;
  }
  return bytes;
}

}  // namespace

DriveWear parse_smart_log(std::span<const std::byte, kSmartLogBytes> log) {
  uint64_t units = 0;
  std::memcpy(&units, log.data() + kDataUnitsWrittenAt, sizeof(units));
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<Bytes>::max() / kDataUnitBytes);
  return {static_cast<Bytes>(std::min(units, kMost)) * kDataUnitBytes,
          std::to_integer<int>(log[kPercentageUsedAt])};
}

std::optional<DriveWear> read_drive_wear(const std::string& directory) {
  const std::string device = nvme_device_of(directory);
  if (device.empty()) return std::nullopt;
  const UniqueFd fd(open(device.c_str(), O_RDONLY | O_CLOEXEC), device);
  if (fd.get() < 0) return std::nullopt;
  alignas(8) std::array<std::byte, kSmartLogBytes> log{};
  nvme_admin_cmd command{};
  command.opcode = kGetLogPage;
  command.nsid = kAllNamespaces;
  command.addr = reinterpret_cast<uintptr_t>(log.data());
  command.data_len = kSmartLogBytes;
  command.cdw10 = kSmartLogPage | ((kSmartLogBytes / 4 - 1) << 16);
  if (ioctl(fd.get(), NVME_IOCTL_ADMIN_CMD, &command) != 0) return std::nullopt;
  return parse_smart_log(log);
}

std::optional<DriveRoom> read_drive_room(const std::string& directory) {
  const std::string path = nearest_existing(directory);
  struct stat status{};
  struct statvfs space{};
  struct statfs kind{};
  if (::stat(path.c_str(), &status) != 0 || ::statvfs(path.c_str(), &space) != 0 ||
      ::statfs(path.c_str(), &kind) != 0) {
    return std::nullopt;
  }
  std::error_code ignored;
  const bool there = fs::is_directory(directory, ignored);
  return DriveRoom{.file_system = status.st_dev,
                   .directory = there ? status.st_ino : 0,
                   .free = static_cast<Bytes>(space.f_bavail) * static_cast<Bytes>(space.f_frsize),
                   .held = held_by_state_files(directory),
                   .in_memory = kind.f_type == TMPFS_MAGIC || kind.f_type == RAMFS_MAGIC};
}

}  // namespace longshore
