// DriveProbe: measures a directory's drive through our own I/O: speed and CPU cost by chunk size
// and depth. Makes a scratch file there and removes it. One thread; the caller owns it.
#pragma once

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "device/host_mapping.h"
#include "nvme/drive/open_drive.h"

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

}  // namespace longshore
