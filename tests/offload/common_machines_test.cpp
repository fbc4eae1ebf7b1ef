// Known machines: each has every rate that a run needs, has the figures of its data sheets, and is
// found by its name as people write it.
#include <gtest/gtest.h>

#include "base/errors.h"
#include "offload/forecast/common_machines.h"
#include "shard/state_format.h"

namespace longshore {
namespace {

// Each known machine has every rate.
TEST(CommonMachines, EachHasEveryRate) {
  for (const std::string& name : common_machine_names()) {
    SCOPED_TRACE(name);
    const std::optional<DescribedMachine> one = common_machine(name);
    ASSERT_TRUE(one);
    EXPECT_EQ(one->rates.source, "estimated from data sheets");
    EXPECT_GT(one->machine.physical_cores, 1);
    EXPECT_LT(one->machine.ram_available, one->machine.ram_total);
    EXPECT_GT(one->watts * one->rates.copy * one->rates.pin * one->rates.files_read, 0.0);
    for (const StateFormatTraits& traits : kStateFormats) {
      EXPECT_GT(one->rates.update_bytes(traits.format, 1, 1), 0.0) << traits.name;
    }
    EXPECT_NE(one->rates.drive("/anywhere"), nullptr);
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      EXPECT_NE(one->rates.of(DeviceKind::kCpu, dtype), nullptr);
      const bool gpu = one->rates.of(DeviceKind::kCuda, dtype) != nullptr;
      EXPECT_EQ(gpu, !one->machine.gpus.empty());
    }
    if (one->machine.gpus.empty()) continue;
    EXPECT_GT(one->rates.link.to_device_both, 0.0);
    const auto gpus = static_cast<int32_t>(one->machine.gpus.size());
    EXPECT_EQ(one->rates.group(DeviceKind::kCuda, gpus) != nullptr, gpus > 1);
  }
}

// Goal: the estimates stay those with which plans and recipes were published.
TEST(CommonMachines, HaveTheFiguresOfTheirDataSheets) {
  const DescribedMachine two = *common_machine("2x-rtx-4090");
  EXPECT_EQ(two.name, "2 x NVIDIA GeForce RTX 4090, AMD EPYC 9554, 512 GiB");
  EXPECT_EQ(two.machine.physical_cores, 64);
  EXPECT_EQ(two.machine.ram_available, 500 * kGiB);
  EXPECT_EQ(two.machine.gpus.size(), 2u);
  EXPECT_EQ(two.watts, 1300.0);
  EXPECT_EQ(two.rates.link, (LinkRates{25.2e9, 25.2e9, 22.05e9, 22.05e9}));
  EXPECT_DOUBLE_EQ(two.rates.dram, 322.6e9);
  EXPECT_DOUBLE_EQ(two.rates.update_bytes(StateFormat::kSplitInt8, 8, 1), 230.4e9);
  EXPECT_DOUBLE_EQ(two.rates.drive("/x")->read, 6.705e9);
  EXPECT_DOUBLE_EQ(two.rates.drive("/x")->written_both, 4.14e9);
  EXPECT_DOUBLE_EQ(two.rates.group(DeviceKind::kCuda, 2)->gather.bytes, 12.6e9);
  EXPECT_DOUBLE_EQ(two.rates.group(DeviceKind::kCuda, 2)->all_reduce.bytes, 6.3e9);
  const ComputeRates& bf16 = *two.rates.of(DeviceKind::kCuda, DType::kBF16);
  EXPECT_EQ(bf16.attention, 49.56e12);
  EXPECT_EQ(bf16.adapters, 484e9);
  EXPECT_EQ(bf16.products, (std::vector<ProductRate>{{1024.0, 57.82e12}, {4096.0, 90.86e12}}));
  const DescribedMachine eight = *common_machine("8x-h100-sxm");
  EXPECT_EQ(eight.watts, 7100.0);
  EXPECT_EQ(eight.machine.ram_available, 2012 * kGiB);
  EXPECT_EQ(eight.machine.gpus.front().peers.size(), 7u);
  EXPECT_DOUBLE_EQ(eight.rates.group(DeviceKind::kCuda, 4)->reduce_scatter.bytes, 270e9);
  EXPECT_EQ(common_machine("rtx-4060-ti-16gb")->rates.link.to_host_both, 11.02e9);
  EXPECT_EQ(common_machine("cpu-desktop-ddr5")->rates.of(DeviceKind::kCpu, DType::kBF16)->attention,
            0.096e12);
}

// Goal: a GPU is found as people write its name; a name of two GPUs is asked about.
TEST(CommonMachines, AreFoundByTheirNamesAsPeopleWriteThem) {
  const std::vector<std::pair<const char*, const char*>> names = {
      {"RTX 3080", "NVIDIA GeForce RTX 3080, AMD Ryzen 9 5950X, 64 GiB"},
      {"rtx3080", "NVIDIA GeForce RTX 3080, AMD Ryzen 9 5950X, 64 GiB"},
      {"3080", "NVIDIA GeForce RTX 3080, AMD Ryzen 9 5950X, 64 GiB"},
      {"RTX 3080 10GB", "NVIDIA GeForce RTX 3080, AMD Ryzen 9 5950X, 64 GiB"},
      {"rtx-3060-12gb", "NVIDIA GeForce RTX 3060, AMD Ryzen 9 5950X, 64 GiB"},
      {"NVIDIA GeForce RTX 4070 Ti SUPER",
       "NVIDIA GeForce RTX 4070 Ti SUPER, AMD Ryzen 9 7950X, 64 GiB"},
      {"4070 ti super 16 GB", "NVIDIA GeForce RTX 4070 Ti SUPER, AMD Ryzen 9 7950X, 64 GiB"},
      {"NVIDIA GeForce RTX 4060 Laptop GPU",
       "NVIDIA GeForce RTX 4060 Laptop GPU, AMD Ryzen 7 7840HS, 32 GiB"},
      {"RTX 4060 Ti 16GB", "NVIDIA GeForce RTX 4060 Ti, AMD Ryzen 9 7950X, 64 GiB"},
      {"A6000", "NVIDIA RTX A6000, AMD EPYC 7763, 256 GiB"},
      {"NVIDIA L40S", "NVIDIA L40S, AMD EPYC 9554, 256 GiB"},
      {"NVIDIA A100-PCIE-40GB", "NVIDIA A100-PCIE-40GB, AMD EPYC 7763, 256 GiB"},
      {"A100 80 GB", "NVIDIA A100 80GB PCIe, AMD EPYC 7763, 256 GiB"},
      {"NVIDIA H100 80GB HBM3", "NVIDIA H100 SXM, Intel Xeon Platinum 8480+, 512 GiB"},
      {"2x-rtx-3090", "2 x NVIDIA GeForce RTX 3090, AMD EPYC 9554, 512 GiB"},
      {"4x 4090", "4 x NVIDIA GeForce RTX 4090, AMD EPYC 9554, 512 GiB"},
      {"2 x NVIDIA GeForce RTX 4090", "2 x NVIDIA GeForce RTX 4090, AMD EPYC 9554, 512 GiB"},
      {"2x4090", "2 x NVIDIA GeForce RTX 4090, AMD EPYC 9554, 512 GiB"}};
  for (const auto& [written, name] : names) {
    const std::optional<DescribedMachine> found = common_machine(written);
    ASSERT_TRUE(found) << written;
    EXPECT_EQ(found->name, name) << written;
  }
  for (const char* unknown : {"rtx-3085", "RTX 3080 24GB", "rtx-3090-laptop", "", "2x", "gpu"}) {
    EXPECT_FALSE(common_machine(unknown)) << unknown;
  }
  EXPECT_EQ(nearest_machine("RTX 4709"), "rtx-4070");
  EXPECT_EQ(nearest_machine("2x rtx-3909"), "2x-rtx-3090");
  EXPECT_EQ(nearest_machine("a laptop"), "");
  try {
    common_machine("A100");
    FAIL() << "two GPUs have this name";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "--machine A100: name one of a100-40gb, a100-80gb");
  }
}

// Goal: changes of a known machine change what they name, and what follows from it.
TEST(CommonMachines, CanBeChanged) {
  MachineChanges changes{.gpus = 2, .memory = 128 * kGiB};
  parse_drive_rates("10GB/s,5GB/s", changes);
  const DescribedMachine one = *common_machine("RTX 4090"), two = *common_machine("4090", changes);
  EXPECT_EQ(two.name, "2 x NVIDIA GeForce RTX 4090, AMD Ryzen 9 7950X, 128 GiB");
  EXPECT_EQ(two.machine.ram_available, 122 * kGiB);
  EXPECT_EQ(two.watts, one.watts + 450.0);
  EXPECT_DOUBLE_EQ(two.rates.drive("/x")->read, 9e9);
  EXPECT_DOUBLE_EQ(two.rates.drive("/x")->written_both, 3e9);
  // Two GPUs share the 16 lanes of a desktop.
  EXPECT_EQ(two.rates.link.to_device, one.rates.link.to_device / 2);
  EXPECT_DOUBLE_EQ(two.rates.group(DeviceKind::kCuda, 2)->gather.bytes, 6.3e9);
  EXPECT_EQ(common_machine("h100", {.gpus = 4})->machine.ram_total, 2048 * kGiB) << "a board";
  MachineChanges read_alone;
  parse_drive_rates("3500MB/s", read_alone);
  EXPECT_NEAR(common_machine("4090", read_alone)->rates.drive("/x")->written / 1e9, 2.917, 1e-9);
  for (const char* wrong : {"fast", "7", "7GB", "-1GB/s", "nanGB/s", "7GB/s,"}) {
    MachineChanges none;
    EXPECT_THROW(parse_drive_rates(wrong, none), ConfigError) << wrong;
  }
  EXPECT_THROW(common_machine("cpu-desktop-ddr5", {.gpus = 2}), ConfigError);
  EXPECT_THROW(common_machine("4090", {.gpus = 40}), ConfigError);
}

}  // namespace
}  // namespace longshore
