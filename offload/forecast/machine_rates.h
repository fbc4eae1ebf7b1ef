// MachineRates: how fast a machine moves and computes, as plain values: measured by
// `doctor --rates`, or read from a description (machine_file.h). What is 0, or has no entry, is not
// known, and nobody guesses it. Bytes and operations are of a second.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/dtype.h"
#include "device/device_kind.h"
#include "shard/policy.h"

namespace longshore {

// Between the host's arena and a GPU; `both`: each way while the other is busy too.
struct LinkRates {
  double to_device = 0.0, to_host = 0.0;
  double to_device_both = 0.0, to_host_both = 0.0;
  bool operator==(const LinkRates&) const = default;
};

// Bytes that the update reads and writes, on all cores, while copies run; and by one thread, which
// so many threads have so many times, up to the former.
struct UpdateRate {
  StateFormat format = StateFormat::kFp32;
  double bytes = 0.0;
  double one_thread = 0.0;
  bool operator==(const UpdateRate&) const = default;
};

// Of one drive through our own I/O; `both`: each way while the other is busy too.
struct DriveRates {
  std::string directory;  // where it was measured; "*" in a description
  double read = 0.0, written = 0.0;
  double read_both = 0.0, written_both = 0.0;
  // Of the time at `read` and `written`, for which a core is kept busy: checks, and the system's.
  double read_core_share = 0.0, written_core_share = 0.0;
  bool operator==(const DriveRates&) const = default;
};

// A collective: what it takes however little it moves, and the payload that a rank hands to it
// after that. A network's bytes keep no core busy, those between processes of a machine do.
struct CollectiveRate {
  double bytes = 0.0;
  double start_seconds = 0.0;
  double start_core_seconds = 0.0;  // of those, for which it wants one of the rank's cores
  double core_share = 1.0;          // of the time for bytes, for which it does
  bool operator==(const CollectiveRate&) const = default;
};

// Collectives of so many ranks; the payload is whole gathered units, whole gradients.
struct GroupRates {
  DeviceKind device = DeviceKind::kCpu;
  int32_t ranks = 0;
  CollectiveRate gather, reduce_scatter, all_reduce;
  bool operator==(const GroupRates&) const = default;
};

// Products of matrices with so many columns, with what a unit computes beside them.
struct ProductRate {
  double width = 0.0;
  double flops = 0.0;
  bool operator==(const ProductRate&) const = default;
};

struct ComputeRates {
  DeviceKind device = DeviceKind::kCpu;
  DType dtype = DType::kF32;
  std::vector<ProductRate> products;  // by width, the least first
  double attention = 0.0;             // operations on pairs of positions that see each other
  bool operator==(const ComputeRates&) const = default;
};

struct MachineRates {
  std::string source;  // "measured by doctor", "config/machines/x.toml"; empty: nothing is known
  LinkRates link;
  double dram = 0.0;  // read and written by a pass that only moves
  double copy = 0.0;  // by one thread, from memory to memory: the CPU device's link
  double pin = 0.0;   // bytes of memory made ready for copies
  double files_read = 0.0, files_written = 0.0;  // of models and checkpoints
  std::vector<UpdateRate> updates;
  std::vector<DriveRates> drives;
  std::vector<GroupRates> groups;
  std::vector<ComputeRates> compute;

  bool known() const { return !source.empty(); }
  // By so many threads on each of so many ranks, for one rank.
  double update_bytes(StateFormat format, int threads, int32_t ranks) const;
  // nullptr: not known.
  const GroupRates* group(DeviceKind device, int32_t ranks) const;
  const ComputeRates* of(DeviceKind device, DType dtype) const;
  // The drive that a directory is on, by the name it was measured under; "*" of a description is
  // any directory. nullptr: not known.
  const DriveRates* drive(const std::string& directory) const;
  bool operator==(const MachineRates&) const = default;
};

// Between two widths in proportion to their logarithms; beyond the ends as at the ends. 0: not
// known.
double product_flops(const ComputeRates& rates, double width);

}  // namespace longshore
