// MachineRates: a machine's speeds, measured by `check machine --rates` or read from a machine
// file. Plain values, in bytes and operations per second. A rate of 0 or without an entry is
// unknown.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/dtype.h"
#include "device/device_kind.h"
#include "offload/plan/machine.h"
#include "shard/policy.h"

namespace longshore {

// Rates between the host's arena and a GPU; `both` is per direction with both directions busy.
struct LinkRates {
  double to_device = 0.0, to_host = 0.0;
  double to_device_both = 0.0, to_host_both = 0.0;
  bool operator==(const LinkRates&) const = default;
};

// Bytes that the update reads and writes: on all cores with copies running, and by one thread. N
// threads reach N times the rate of one thread, at most the rate of all cores.
struct UpdateRate {
  StateFormat format = StateFormat::kFp32;
  double bytes = 0.0;
  double one_thread = 0.0;
  bool operator==(const UpdateRate&) const = default;
};

// Rates of one drive through our I/O; `both` is per direction with both directions busy.
struct DriveRates {
  std::string directory;  // the measured directory; "*" in a description
  double read = 0.0, written = 0.0;
  double read_both = 0.0, written_both = 0.0;
  // The shares of the time at `read` and `written` that keep a core busy (checks, kernel).
  double read_core_share = 0.0, written_core_share = 0.0;
  bool operator==(const DriveRates&) const = default;
};

// Rates of a collective: its fixed cost, and the payload of a rank per second after that. Bytes
// over a network keep no core busy; bytes between processes of a machine do.
struct CollectiveRate {
  double bytes = 0.0;
  double start_seconds = 0.0;
  double start_core_seconds = 0.0;  // the part that needs one of the rank's cores
  double core_share = 1.0;          // the share of the payload's time that needs a core
  bool operator==(const CollectiveRate&) const = default;
};

// Rates of collectives over N ranks; payloads are whole gathered units and whole gradients.
struct GroupRates {
  DeviceKind device = DeviceKind::kCpu;
  int32_t ranks = 0;
  CollectiveRate gather, reduce_scatter, all_reduce;
  bool operator==(const GroupRates&) const = default;
};

// Products of matrices of one width, including the unit's other work.
struct ProductRate {
  double width = 0.0;
  double flops = 0.0;
  bool operator==(const ProductRate&) const = default;
};

struct ComputeRates {
  DeviceKind device = DeviceKind::kCpu;
  DType dtype = DType::kF32;
  std::vector<ProductRate> products;  // by width, ascending
  double attention = 0.0;             // operations on visible pairs of positions
  double adapters = 0.0;              // bytes of rows that products with adapters read and write
  bool operator==(const ComputeRates&) const = default;
};

struct MachineRates {
  std::string source;  // "measured by longshore", "estimated from data sheets"; empty: no rates
  LinkRates link;
  double dram = 0.0;                             // bytes of a pass that only moves them
  double copy = 0.0;                             // of one thread: the CPU device's link
  double pin = 0.0;                              // bytes of memory that are pinned per second
  double files_read = 0.0, files_written = 0.0;  // models and checkpoints
  std::vector<UpdateRate> updates;
  std::vector<DriveRates> drives;
  std::vector<GroupRates> groups;
  std::vector<ComputeRates> compute;

  bool known() const { return !source.empty(); }
  // Returns one rank's rate with N threads on each of the machine's ranks.
  double update_bytes(StateFormat format, int threads, int32_t ranks) const;
  // Returns nullptr if unknown.
  const GroupRates* group(DeviceKind device, int32_t ranks) const;
  const ComputeRates* of(DeviceKind device, DType dtype) const;
  // Returns the rates of a directory's drive by its measured name, or of "*", a description's
  // default; nullptr if unknown.
  const DriveRates* drive(const std::string& directory) const;
  bool operator==(const MachineRates&) const = default;
};

// Interpolates by the logarithm of the width, constant beyond the ends. 0: unknown.
double product_flops(const ComputeRates& rates, double width);

// The table of a machine's rates: one row for each number of machine_rates.h. The reader and the
// writer of machine files and the JSON form are loops over it. Constants, any thread.

inline constexpr double kGiga = 1e9, kTera = 1e12, kMicro = 1e-6;
inline constexpr double kMostRate = 1e6;  // GB/s or TFLOP/s; a larger number has a wrong unit

template <typename Rates>
struct RateField {
  const char* key;   // in a machine file, where the number is in `unit`
  const char* name;  // in JSON, where it is in bytes, operations or seconds
  double Rates::* member;
  double unit = kGiga;
  double most = kMostRate;  // the largest number of a machine file
};

inline constexpr std::array kMachineFields = {
    RateField<MachineRates>{"dram", "dram", &MachineRates::dram},
    RateField<MachineRates>{"copy", "copy", &MachineRates::copy},
    RateField<MachineRates>{"pin", "pin", &MachineRates::pin},
    RateField<MachineRates>{"files_read", "files_read", &MachineRates::files_read},
    RateField<MachineRates>{"files_written", "files_written", &MachineRates::files_written},
};
inline constexpr std::array kLinkFields = {
    RateField<LinkRates>{"to_device", "to_device", &LinkRates::to_device},
    RateField<LinkRates>{"to_host", "to_host", &LinkRates::to_host},
    RateField<LinkRates>{"to_device_both", "to_device_both", &LinkRates::to_device_both},
    RateField<LinkRates>{"to_host_both", "to_host_both", &LinkRates::to_host_both},
};
inline constexpr std::array kUpdateFields = {
    RateField<UpdateRate>{"bytes", "bytes", &UpdateRate::bytes},
    RateField<UpdateRate>{"one_thread", "one_thread", &UpdateRate::one_thread},
};
inline constexpr std::array kDriveFields = {
    RateField<DriveRates>{"read", "read", &DriveRates::read},
    RateField<DriveRates>{"written", "written", &DriveRates::written},
    RateField<DriveRates>{"read_both", "read_both", &DriveRates::read_both},
    RateField<DriveRates>{"written_both", "written_both", &DriveRates::written_both},
    RateField<DriveRates>{"read_core", "read_core_share", &DriveRates::read_core_share, 1.0, 1.0},
    RateField<DriveRates>{"written_core", "written_core_share", &DriveRates::written_core_share,
                          1.0, 1.0},
};
inline constexpr std::array kComputeFields = {
    RateField<ComputeRates>{"attention", "attention", &ComputeRates::attention, kTera},
    RateField<ComputeRates>{"adapters", "adapters", &ComputeRates::adapters},
};
inline constexpr std::array kProductFields = {
    RateField<ProductRate>{"width", "width", &ProductRate::width, 1.0},
    RateField<ProductRate>{"flops", "flops", &ProductRate::flops, kTera},
};

// The collectives of a group, by their key in a machine file and in JSON.
struct CollectiveField {
  const char* key;
  CollectiveRate GroupRates::* member;
};
inline constexpr std::array kCollectiveFields = {
    CollectiveField{"gather", &GroupRates::gather},
    CollectiveField{"reduce_scatter", &GroupRates::reduce_scatter},
    CollectiveField{"all_reduce", &GroupRates::all_reduce},
};

// machine_file: a machine as TOML text: cores, memory, GPUs, drives, rates, and the sources of the
// numbers. `check machine --save` writes it, `plan --machine` reads it, and commands keep rates in
// it. Rates are in GB/s (1e9 bytes) and TFLOP/s. Pure functions.

struct DescribedMachine {
  std::string name;
  Machine machine;
  MachineRates rates;
  double watts = 0.0;                // of the whole machine under load; 0: unknown
  std::vector<std::string> sources;  // of the numbers, with the factors of estimates
  std::string program = {};          // the build that measured it
};

std::string machine_to_toml(const DescribedMachine& machine);
// Parses a text; throws ConfigError with every problem and its position.
DescribedMachine parse_machine(const std::string& text, const std::string& origin);

}  // namespace longshore
