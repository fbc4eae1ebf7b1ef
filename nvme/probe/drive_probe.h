// DriveProbe: how fast a directory's drive is through our own I/O, with which chunk size and depth,
// and at what cost of CPU. Makes a scratch file there and removes it. One thread.
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
  double core_percent_per_gb = 0.0;  // of one core, for each GB/s
};

// The median of each figure.
DriveSpeed median_of(const std::vector<DriveSpeed>& speeds);

class DriveProbe {
 public:
  // Makes a file of `file_bytes` and writes all of it: unwritten extents are slower.
  DriveProbe(const std::string& directory, Bytes file_bytes, IoEngine engine);
  ~DriveProbe();
  DriveProbe(const DriveProbe&) = delete;
  DriveProbe& operator=(const DriveProbe&) = delete;

  const std::string& path() const { return path_; }
  // "io_uring" or "threads".
  const std::string& kind() const { return kind_; }
  // Streams through the file, over its end again, for about `seconds`, or until about `most` bytes
  // were moved; writes are flushed within.
  DriveSpeed measure(BlockOp::Kind kind, const DriveSettings& settings, double seconds,
                     Bytes most = std::numeric_limits<Bytes>::max());
  // Reads and writes at once: the speed of each while the other runs. The same limits for both.
  std::pair<DriveSpeed, DriveSpeed> measure_both(const DriveSettings& settings, double seconds,
                                                 Bytes most = std::numeric_limits<Bytes>::max());
  // Bytes written to the drive so far, those of the file's making too.
  Bytes written() const { return written_; }
  // The settings whose slower direction is fastest, of chunks of 1 to 4 MiB and 32 to 128 MiB in
  // flight; tries each for `seconds` in each direction.
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
