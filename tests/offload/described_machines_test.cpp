// The machines of config/machines: each can be read, says where its figures come from and has the
// rates of everything that a run on it needs.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "offload/forecast/common_machines.h"
#include "offload/forecast/machine_file.h"
#include "shard/state_format.h"
#include "tests/fakes/test_files.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

TEST(DescribedMachines, EachHasSourcesAndEveryRate) {
  int machines = 0;
  for (const auto& entry : fs::directory_iterator(test_data() + "/../config/machines")) {
    const std::string path = entry.path();
    ASSERT_EQ(entry.path().extension(), ".toml") << path;
    const DescribedMachine one = parse_machine(read_whole_file(path, kMiB), path);
    ++machines;
    EXPECT_GE(one.sources.size(), 2u) << path;
    const bool says_estimates = std::ranges::any_of(
        one.sources, [](const std::string& source) { return source.starts_with("estimates: "); });
    EXPECT_TRUE(says_estimates) << path << ": rates come from data sheets by factors";
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
  EXPECT_GE(machines, 40);
}

// Goal: the program has the machines that the checkout has.
TEST(DescribedMachines, AreInTheProgram) {
  const std::string folder = test_data() + "/../config/machines/";
  const auto files = fs::directory_iterator(folder);
  EXPECT_EQ(std::distance(begin(files), end(files)), std::ssize(common_machines()));
  for (const NamedText& machine : common_machines()) {
    EXPECT_EQ(machine.text, read_whole_file(folder + std::string(machine.name) + ".toml", kMiB));
  }
}

}  // namespace
}  // namespace longshore
