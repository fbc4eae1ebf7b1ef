#include "nvme/probe/drive_probe.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <future>

#include "base/errors.h"
#include "base/median.h"

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

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

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
  const double begin = now_seconds();
  start(0);
  start(1);
  for (size_t i = 0; now_seconds() - begin < seconds && started < most; i = 1 - i) {
    drive.wait(transfers[i]);
    start(i);
  }
  for (Transfer& transfer : transfers) drive.wait(transfer);
  if (kind == BlockOp::Kind::kWrite) drive.flush();
  return {started, now_seconds() - begin};
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

}  // namespace longshore
