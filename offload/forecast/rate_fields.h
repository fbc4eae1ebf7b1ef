// The table of a machine's rates: one row for each number of machine_rates.h. The reader and the
// writer of machine files and the JSON form are loops over it. Constants, any thread.
#pragma once

#include <array>

#include "offload/forecast/machine_rates.h"

namespace longshore {

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

}  // namespace longshore
