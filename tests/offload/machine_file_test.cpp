// Machine files: a written file reads back, and every problem is named with its position.
#include "offload/forecast/machine_rates.h"

#include <gtest/gtest.h>

#include "base/errors.h"

namespace longshore {
namespace {

DescribedMachine full_machine() {
  DescribedMachine described;
  described.name = "a machine";
  described.watts = 650;
  described.sources = {"vendor's \"data sheet\"", "link: 0.8 of PCIe 4.0 x16"};
  Machine& machine = described.machine;
  machine.cpu_model = "Some CPU";
  machine.physical_cores = 16;
  machine.logical_cores = 32;
  machine.simd = SimdLevel::kAvx512;
  machine.ram_total = 128 * kGiB;
  machine.ram_available = 122 * kGiB;
  machine.gpus = {{.name = "Some GPU", .memory_bytes = 24 * kGiB}};
  MachineRates& rates = described.rates;
  rates.source = "measured by longshore";
  rates.link = {25e9, 24e9, 20e9, 19e9};
  rates.dram = 80e9;
  rates.copy = 9e9;
  rates.pin = 4e9;
  rates.files_read = 3e9;
  rates.files_written = 2e9;
  rates.updates = {{StateFormat::kSplitBf16, 60e9, 20e9}, {StateFormat::kFp32, 70e9}};
  rates.drives = {{"/mnt/one", 6.5e9, 4e9, 5e9, 3e9, 0.25, 0.5}};
  rates.groups = {
      {DeviceKind::kCuda, 2, {40e9, 30 * 1e-6, 20 * 1e-6, 0.25}, {30e9, 0.0}, {20e9, 50 * 1e-6}}};
  rates.compute = {{DeviceKind::kCuda, DType::kBF16, {{1024, 80e12}, {4096, 120e12}}, 60e12},
                   {DeviceKind::kCpu, DType::kF32, {{256, 0.5e12}}, 0.1e12}};
  return described;
}

std::string problems_of(const std::string& text) {
  try {
    parse_machine(text, "m.toml");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

// A written machine reads back equal.
TEST(MachineFile, WhatIsWrittenIsRead) {
  const DescribedMachine written = full_machine();
  const DescribedMachine read = parse_machine(machine_to_toml(written), "m.toml");
  EXPECT_EQ(read.rates, written.rates);
  EXPECT_EQ(read.name, written.name);
  EXPECT_EQ(read.sources, written.sources);
  EXPECT_EQ(read.watts, 650.0);
  EXPECT_EQ(read.machine.cpu_model, written.machine.cpu_model);
  EXPECT_EQ(read.machine.simd, SimdLevel::kAvx512);
  EXPECT_EQ(read.machine.logical_cores, 32);
  EXPECT_EQ(read.machine.ram_total, 128 * kGiB);
  EXPECT_EQ(read.machine.host_available(), 122 * kGiB);
  ASSERT_EQ(read.machine.gpus.size(), 1u);
  EXPECT_EQ(read.machine.gpus[0].memory_bytes, 24 * kGiB);
  EXPECT_EQ(machine_to_toml(read), machine_to_toml(written));
}

// A plan may use what is free; without that line it is all memory.
TEST(MachineFile, FreeMemoryIsAtMostTheMemory) {
  const std::string host = "version = 1\n[host]\nmemory = \"64GiB\"\n";
  EXPECT_EQ(parse_machine(host, "m.toml").machine.host_available(), 64 * kGiB);
  EXPECT_EQ(parse_machine(host + "free = \"59GiB\"\n", "m.toml").machine.host_available(),
            59 * kGiB);
  EXPECT_NE(problems_of(host + "free = \"65GiB\"\n").find("free is more than memory"),
            std::string::npos);
}

// Equal GPUs are one table with a count.
TEST(MachineFile, ManyCardsOfAKindAreOneTable) {
  const DescribedMachine read = parse_machine(
      "version = 1\n[host]\ncores = 8\nmemory = \"64GiB\"\n[[gpu]]\nname = \"Card\"\n"
      "memory = \"24GiB\"\ncount = 4\npeers = 1\n",
      "m.toml");
  ASSERT_EQ(read.machine.gpus.size(), 4u);
  EXPECT_EQ(read.machine.gpus[1].peers, (std::vector<int>{0, 2, 3}));
  EXPECT_EQ(read.rates.source, "m.toml");
  EXPECT_EQ(read.rates.update_bytes(StateFormat::kFp32, 1, 1), 0.0) << "nothing is made up";
}

// Every problem is named with its position.
TEST(MachineFile, EveryProblemIsNamedWithItsPlace) {
  const std::string text = problems_of(
      "version = 1\nnmae = \"x\"\n[host]\ncores = 0\n[[gpu]]\nname = \"Card\"\n[rates]\n"
      "dram = -1\n[[rates.group]]\ndevice = \"cpu\"\ngather_core = 1.5\n[[rates.compute]]\ndevice "
      "= \"tpu\"\ndtype = \"fp64\"\n");
  for (const char* part :
       {"m.toml:2:1: nmae: no such key; did you mean name?", "m.toml:4:9: host.cores: from 1",
        "host.memory is missing", "gpu.memory is missing",
        "m.toml:8:1: rates.dram: expected a number",
        "gather_core: expected a number above 0 and at most 1",
        "compute.device: \"cpu\" or \"cuda\"", "compute.dtype: \"fp32\" or \"bf16\""}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in:\n" << text;
  }
  EXPECT_NE(problems_of("[host]\nmemory = \"1GiB\"\n").find("version = 1 is missing"),
            std::string::npos);
  EXPECT_NE(problems_of("version = 1\n").find("[host] is missing"), std::string::npos);
}

// The rate of matrix products is interpolated between widths.
TEST(MachineRates, ProductsAreReadBetweenWidths) {
  const ComputeRates rates{DeviceKind::kCpu, DType::kF32, {{256, 100.0}, {1024, 300.0}}, 0.0};
  EXPECT_DOUBLE_EQ(product_flops(rates, 16), 100.0);
  EXPECT_DOUBLE_EQ(product_flops(rates, 512), 200.0) << "in the middle of the logarithms";
  EXPECT_DOUBLE_EQ(product_flops(rates, 1024), 300.0);
  EXPECT_DOUBLE_EQ(product_flops(rates, 1e6), 300.0);
  EXPECT_EQ(product_flops({}, 512), 0.0);
}

// The drive "*" gives the rates of any drive without its own.
TEST(MachineRates, AStarStandsForAnyDrive) {
  MachineRates rates;
  EXPECT_EQ(rates.drive("/a"), nullptr);
  rates.drives = {{"/a", 1, 1, 0, 0}, {"*", 2, 2, 0, 0}};
  EXPECT_EQ(rates.drive("/a")->read, 1.0);
  EXPECT_EQ(rates.drive("/b")->read, 2.0);
}

}  // namespace
}  // namespace longshore
