// Each machine of config/machines can be read, is built in, and has every rate that a run needs.
#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>

#include "base/file.h"
#include "offload/forecast/machine_rates.h"
#include "shard/state_format.h"
#include "tests/fakes/test_files.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

// Each described machine has every rate.
TEST(DescribedMachines, EachHasEveryRate) {
  int machines = 0;
  for (const auto& entry : fs::directory_iterator(test_data() + "/../config/machines")) {
    const std::string path = entry.path();
    ASSERT_EQ(entry.path().extension(), ".toml") << path;
    const DescribedMachine one = parse_machine(read_whole_file(path, kMiB), path);
    ++machines;
    EXPECT_GT(one.machine.physical_cores, 1) << path;
    EXPECT_GT(one.rates.copy * one.rates.pin * one.rates.files_read, 0.0) << path;
    for (const StateFormatTraits& traits : kStateFormats) {
      EXPECT_GT(one.rates.update_bytes(traits.format, 1, 1), 0.0) << path << " " << traits.name;
    }
    EXPECT_NE(one.rates.drive("/anywhere"), nullptr) << path;
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      EXPECT_NE(one.rates.of(DeviceKind::kCpu, dtype), nullptr) << path;
      const bool gpu = one.rates.of(DeviceKind::kCuda, dtype) != nullptr;
      EXPECT_EQ(gpu, !one.machine.gpus.empty()) << path;
    }
    if (one.machine.gpus.empty()) continue;
    EXPECT_GT(one.rates.link.to_device_both, 0.0) << path;
    const auto cards = static_cast<int32_t>(one.machine.gpus.size());
    if (cards == 1) continue;
    EXPECT_NE(one.rates.group(DeviceKind::kCuda, cards), nullptr) << path;
  }
  EXPECT_EQ(machines, std::ssize(common_machines())) << "the program has all of them";
}

}  // namespace
}  // namespace longshore
