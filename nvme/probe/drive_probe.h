// DriveProbe: measures a directory's drive through our own I/O: speed and CPU cost by chunk size
// and depth. Makes a scratch file there and removes it. One thread; the caller owns it. Tuning
// follows from a short probe; fio on the same file is the reference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "device/host_mapping.h"
#include "nvme/drive/drive.h"
#include "nvme/parts/stripe_map.h"

namespace longshore {

struct DriveSettings {
  Bytes chunk_bytes = 2 * kMiB;
  int depth = 32;
};

struct DriveSpeed {
  double gb_per_second = 0.0;        // 1e9 bytes
  double core_percent_per_gb = 0.0;  // percent of one core per GB/s
};

// Returns the median of each value.
DriveSpeed median_of(const std::vector<DriveSpeed>& speeds);

class DriveProbe {
 public:
  // Makes a file of `file_bytes` and writes all of it, because unwritten extents are slower.
  DriveProbe(const std::string& directory, Bytes file_bytes, IoEngine engine);
  ~DriveProbe();
  DriveProbe(const DriveProbe&) = delete;
  DriveProbe& operator=(const DriveProbe&) = delete;

  const std::string& path() const { return path_; }
  // Returns "io_uring" or "threads".
  const std::string& kind() const { return kind_; }
  // Streams through the file, wrapping at its end, for about `seconds` or until about `most` bytes
  // were moved. The time includes the flush of writes.
  DriveSpeed measure(BlockOp::Kind kind, const DriveSettings& settings, double seconds,
                     Bytes most = std::numeric_limits<Bytes>::max());
  // Reads and writes at once; returns the speed of each. Both have the same limits.
  std::pair<DriveSpeed, DriveSpeed> measure_both(const DriveSettings& settings, double seconds,
                                                 Bytes most = std::numeric_limits<Bytes>::max());
  // Returns the bytes written to the drive so far, including the file's creation.
  Bytes written() const { return written_; }
  // Returns the settings whose slower direction is fastest, among chunks of 1 to 4 MiB and 32 to
  // 128 MiB in flight. Tries each for `seconds` in each direction.
  DriveSettings find_settings(double seconds);

 private:
  std::string path_;
  std::string kind_;
  Bytes file_bytes_;
  IoEngine engine_;
  struct Stream;
  Stream stream(BlockOp::Kind kind, const DriveSettings& settings, double seconds, Bytes most,
                std::span<std::byte> window) const;

  HostMapping window_;
  Bytes written_ = 0;
};

// DriveTuning: chunk size, depth and speed of a drive, measured once by a short probe and cached in
// the directory as drive_tuning.json; and the stripes for several drives that follow from it. Free
// functions.

struct DriveTuning {
  DriveSettings settings;
  double gb_per_second = 0.0;  // of the slower direction
};

// With less state than this on a drive a probe is not worth its time, and the defaults apply.
inline constexpr Bytes kWorthTuningBytes = kGiB;

// Returns the cached result; nullopt if the file is missing or implausible.
std::optional<DriveTuning> read_drive_tuning(const std::string& directory);

// Measures for about `seconds` through a scratch file (256 MiB, removed), and caches the result. A
// drive so slow that creating the file takes that long gets the default settings.
DriveTuning tune_drive(const std::string& directory, IoEngine engine, double seconds = 1.0);

// One chunk size and depth for all drives, and each drive's share of the stripes by its speed.
struct TunedDrives {
  Geometry geometry;
  int depth = DriveSettings{}.depth;
};
TunedDrives combine(std::span<const DriveTuning> drives);

// The speed of fio on the same file, if it is installed, for comparison.

bool fio_is_installed();

// Runs fio once with `engine` ("io_uring", "libaio") and our chunk size and depth; io_uring uses
// registered buffers and files. Returns nullopt if fio fails or lacks the engine.
std::optional<DriveSpeed> measure_fio(const std::string& path, BlockOp::Kind kind,
                                      const std::string& engine, const DriveSettings& settings,
                                      double seconds);

// DriveWear: the wear that an NVMe drive reports, and the free space of the file system behind a
// directory of offload.nvme. Free functions; any thread.

struct DriveWear {
  Bytes written = 0;     // by hosts, since manufacture
  int percent_used = 0;  // of its rated life; may exceed 100
  bool operator==(const DriveWear&) const = default;
};

inline constexpr size_t kSmartLogBytes = 512;

// Parses the SMART / health information log of NVMe (log page 2).
DriveWear parse_smart_log(std::span<const std::byte, kSmartLogBytes> log);

// Reads the wear of the drive that holds the directory, or will hold it once it is made. Returns
// nullopt if that is not directly an NVMe drive, or without the permission (root).
std::optional<DriveWear> read_drive_wear(const std::string& directory);

// DriveRoom: the free space of the file system behind a directory of offload.nvme. Plain functions.

struct DriveRoom {
  uint64_t file_system = 0;  // directories with equal numbers share free space
  uint64_t directory = 0;    // the directory's own number; 0: it does not exist yet
  Bytes free = 0;
  Bytes held = 0;          // by existing state files, which are reused
  bool in_memory = false;  // a RAM file system: nothing on it survives a reboot
};

// Reads the directory or its nearest existing parent; nullopt if that fails.
std::optional<DriveRoom> read_drive_room(const std::string& directory);

}  // namespace longshore
